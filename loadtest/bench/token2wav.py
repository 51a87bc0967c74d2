"""Speech tokens to PCM, ours and CosyVoice 2's classes on the same weights; a process of its own.

    python -m loadtest.bench.token2wav

Published widths, random weights, float32, one torch thread; of the flow's 14 blocks 4. A second of
sound of one stream, in its fifth second behind a prompt of three. The reference takes one stream at
a time, and is called as its own streaming code calls it: the flow on everything from the prompt on,
the vocoder on 8 frames more than are new. On the side also with nothing before the chunk, which
sounds like another utterance each second; ours remembers 200 frames and computes none again.
Prints a JSON value a line: null for each take, at the end the rows.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from models.codecs.causal import DTYPES
from models.codecs.conformer import ConformerConfig
from models.codecs.flow import FlowConfig
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import HiftConfig, make_hift
from models.codecs.place import Place
from models.codecs.speech_flow import SpeechFlowConfig, make_speech_flow
from models.codecs.token2wav import CLOCK, Token2Wav
from models.codecs.unet import Unet, UnetConfig
from models.layers.conv import ENDLESS
from models.layers.linear import pack

BATCHES: Final = (1, 4, 8)
N_ROUNDS: Final = 3
N_TICKS: Final = N_ROUNDS * (2 * len(BATCHES) + 3)
PARTS: Final = ("flow", "vocoder", "both")
CHUNK, AHEAD, FACTOR = 25, 3, 2
N_PROMPT, N_BEFORE = 75, 100
"""Tokens of the prompt, and of the stream before the second that is measured."""
CACHED_FRAMES: Final = 8
"""That the reference gives its vocoder again."""
N_MELS, N_TOKENS, SPEAKER_DIM = 80, 6561, 192
SIZE, INNER, N_LAYERS, N_HEADS = 512, 2048, 6, 8
"""Of the encoder, and of the vocoder's channels."""
UNET: Final = UnetConfig(
    n_mels=N_MELS, n_channels=256, n_layers=4, n_middle=2, n_heads=8, head_dim=64
)

Call = Callable[[], object]
Row = dict[str, Any]


def reference() -> tuple[Any, Any]:
    """CosyVoice's flow and vocoder, random. Its libraries are apart (`reference_environment`)."""
    from cosyvoice_stubs import (  # type: ignore[import-not-found] # of the tests
        stub_cosyvoice_libraries,
    )

    stub_cosyvoice_libraries()
    from cosyvoice.flow.decoder import (  # type: ignore[import-not-found]
        CausalConditionalDecoder,
    )
    from cosyvoice.flow.flow import CausalMaskedDiffWithXvec  # type: ignore[import-not-found]
    from cosyvoice.flow.flow_matching import (  # type: ignore[import-not-found]
        CausalConditionalCFM,
    )
    from cosyvoice.hifigan.f0_predictor import (  # type: ignore[import-not-found]
        ConvRNNF0Predictor,
    )
    from cosyvoice.hifigan.generator import HiFTGenerator  # type: ignore[import-not-found]
    from cosyvoice.transformer.upsample_encoder import (  # type: ignore[import-not-found]
        UpsampleConformerEncoder,
    )
    from flow_decoder import SETTINGS  # type: ignore[import-not-found] # of the tests

    estimator = CausalConditionalDecoder(
        in_channels=4 * N_MELS,
        out_channels=N_MELS,
        channels=[UNET.n_channels],
        dropout=0.0,
        attention_head_dim=UNET.head_dim,
        n_blocks=UNET.n_layers,
        num_mid_blocks=UNET.n_middle,
        num_heads=UNET.n_heads,
        act_fn="gelu",
        static_chunk_size=FACTOR * CHUNK,
    )
    decoder = CausalConditionalCFM(
        in_channels=3 * N_MELS,
        cfm_params=SETTINGS,
        n_spks=1,
        spk_emb_dim=N_MELS,
        estimator=estimator,
    )
    encoder = UpsampleConformerEncoder(
        input_size=SIZE,
        output_size=SIZE,
        attention_heads=N_HEADS,
        linear_units=INNER,
        num_blocks=N_LAYERS,
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        static_chunk_size=CHUNK,
        macaron_style=False,
        use_cnn_module=False,
    )
    flow = CausalMaskedDiffWithXvec(
        input_size=SIZE,
        spk_embed_dim=SPEAKER_DIM,
        vocab_size=N_TOKENS,
        encoder=encoder,
        decoder=decoder,
    )
    hift = HiFTGenerator(
        in_channels=N_MELS,
        base_channels=SIZE,
        nb_harmonics=8,
        sampling_rate=24_000,
        upsample_rates=[8, 5, 3],
        upsample_kernel_sizes=[16, 11, 7],
        source_resblock_kernel_sizes=[7, 7, 11],
        source_resblock_dilation_sizes=[[1, 3, 5]] * 3,
        f0_predictor=ConvRNNF0Predictor(in_channels=N_MELS, cond_channels=SIZE),
    )
    return flow.eval(), hift.eval()


def ours(flow: Any, hift: Any) -> Token2Wav:  # noqa: ANN401  of an untyped library
    """The detokenizer with the weights of `reference`, laid out for this CPU."""
    config = SpeechFlowConfig(
        n_tokens=N_TOKENS,
        speaker_dim=SPEAKER_DIM,
        encoder=ConformerConfig(
            n_in=SIZE,
            size=SIZE,
            n_heads=N_HEADS,
            inner=INNER,
            n_layers=N_LAYERS,
            n_up_layers=4,
            lookahead=AHEAD,
            chunk_tokens=CHUNK,
            kept_tokens=4 * CHUNK,
        ),
        flow=FlowConfig(
            n_mels=N_MELS,
            n_steps=10,
            guidance=0.7,
            chunk_frames=FACTOR * CHUNK,
            kept=KeptFrames(first=4 * CHUNK, last=4 * CHUNK),
        ),
    )
    vocoder = HiftConfig(
        sample_rate_hz=24_000,
        n_mels=N_MELS,
        n_channels=SIZE,
        strides=(8, 5, 3),
        kernels=(16, 11, 7),
        n_fft=16,
        n_hop=4,
        residual_kernels=(3, 7, 11),
        residual_dilations=((1, 3, 5),) * 3,
        source_kernels=(7, 7, 11),
        source_dilations=((1, 3, 5),) * 3,
        n_f0_channels=SIZE,
        n_harmonics=8,
        sine_gain=0.1,
        noise_gain=0.003,
        voiced_hz=10.0,
        is_interpolated=True,
        slope=0.1,
        limit=0.99,
    )
    made = make_speech_flow(config, Unet(UNET), flow.state_dict(), source="the reference")
    model = Token2Wav(made, make_hift(vocoder, hift.state_dict(), source="the reference"))
    pack(model)
    return model


def reference_calls(flow: Any, hift: Any) -> dict[str, Call]:  # noqa: ANN401  as above
    """A second of sound: as it streams, with nothing before it, and the vocoder's part."""

    def solve(n_prompt: int, n_before: int) -> Call:
        tokens = torch.zeros(1, n_before + CHUNK + AHEAD, dtype=torch.int64)
        given = {
            "token": tokens,
            "token_len": torch.tensor([tokens.shape[1]]),
            "prompt_token": torch.zeros(1, n_prompt, dtype=torch.int64),
            "prompt_token_len": torch.tensor([n_prompt]),
            "prompt_feat": torch.zeros(1, FACTOR * n_prompt, N_MELS),
            "prompt_feat_len": torch.tensor([FACTOR * n_prompt]),
            "embedding": torch.ones(1, SPEAKER_DIM),
        }
        return lambda: flow.inference(streaming=True, finalize=False, **given)

    mel = torch.zeros(1, N_MELS, CACHED_FRAMES + FACTOR * CHUNK)
    source = torch.zeros(1, 1, 480 * CACHED_FRAMES)
    return {
        "flow streamed": solve(N_PROMPT, N_BEFORE),
        "flow alone": solve(0, 0),
        "vocoder": lambda: hift.inference(speech_feat=mel, cache_source=source),
    }


def our_calls(model: Token2Wav, n_streams: int) -> dict[str, Call]:
    """A second of sound of each stream: the flow's part, and the vocoder's."""
    state: dict[str, Tensor] = {
        one.name: torch.zeros(n_streams, *one.shape, dtype=DTYPES[one.dtype])
        for one in model.spec.state
    }
    start = torch.full((n_streams,), N_PROMPT + N_BEFORE)
    place = Place(start=start, begin=torch.zeros_like(start), end=torch.full_like(start, ENDLESS))
    state[CLOCK] = start.unsqueeze(1)
    tokens = torch.zeros(n_streams, CHUNK + AHEAD, dtype=torch.int64)
    known = torch.zeros(n_streams, N_MELS, FACTOR * CHUNK)
    told = torch.ones(n_streams, N_MELS)
    n_valid = torch.full((n_streams,), FACTOR * CHUNK)
    is_last = torch.zeros(n_streams, dtype=torch.bool)
    return {
        f"flow {n_streams}": lambda: model.flow.stream(tokens, place, known, told, state),
        f"vocoder {n_streams}": lambda: model.hift.decode(known, n_valid, state, is_last),
    }


@torch.inference_mode()
def measure(tick: Callable[[], None]) -> list[Row]:
    """The rows; `tick` is called `N_TICKS` times, after each take."""
    flow, hift = reference()
    model = ours(flow, hift)
    calls = reference_calls(flow, hift)
    for n_streams in BATCHES:
        calls |= our_calls(model, n_streams)
    rounds: list[dict[str, float]] = []
    for _ in range(N_ROUNDS):
        taken = {}
        for name, call in calls.items():
            start_s = time.perf_counter()
            call()
            taken[name] = 1000 * (time.perf_counter() - start_s)
            tick()
        rounds.append(taken)
    return rows(rounds)


def rows(rounds: list[dict[str, float]]) -> list[Row]:
    """Medians over the rounds, in ms for a second of a stream; ratios are within a round."""
    made = []
    for part in PARTS:
        whole = [_of_part(part, taken) for taken in rounds]
        row: Row = {"part": part}
        for key in whole[0]:
            row[key] = statistics.median(one[key] for one in whole)
        for n in BATCHES:
            for kind in ("streamed", "alone"):
                ratios = [one[f"{kind}_ms"] / one[f"at_{n}_ms"] for one in whole]
                row[f"{kind}_over_{n}"] = statistics.median(ratios)
        made.append(row)
    return made


def _of_part(part: str, taken: dict[str, float]) -> dict[str, float]:
    """What a stream's second took of a part: the reference in two ways, ours at each batch."""
    if part == "both":
        flow, vocoder = _of_part("flow", taken), _of_part("vocoder", taken)
        return {key: flow[key] + vocoder[key] for key in flow}
    is_flow = part == "flow"
    return {
        "streamed_ms": taken["flow streamed" if is_flow else "vocoder"],
        "alone_ms": taken["flow alone" if is_flow else "vocoder"],
        **{f"at_{n}_ms": taken[f"{part} {n}"] / n for n in BATCHES},
    }


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(json.dumps(measure(lambda: print("null", flush=True))), flush=True)


if __name__ == "__main__":
    main()
