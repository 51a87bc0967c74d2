"""The engine against `transformers` generate on the same model; a process of its own.

    python -m loadtest.bench.generation float32        prints one JSON list

The model is a Llama of 150 million parameters that writes speech codes, with the SNAC decoder of
the published sizes; its weights are random. Requests that come together are generated side by side
by the engine, and one after another by `transformers`, as a server without an engine would use it.
Both draw as the published model does and turn the codes into PCM by the same decoder.
Beside it: what a decode step of the engine costs over the bare matrix products of its shapes.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from engine.config import EngineConfig
from engine.loop import EngineLoop
from engine.types import EngineEvent, OpenStream, StreamFinished, StreamId
from models.base import PromptPlan, TextFeed
from models.codecs.snac import Snac, SnacConfig
from models.hugging_face import LlamaConfig
from models.layers.conv import Span
from models.layers.linear import PackedLinear, linear_of, pack
from models.orpheus.config import N_SLOTS, SLOT_ORDER, STATE_SIZE, OrpheusConfig, OrpheusIds
from models.orpheus.model import OrpheusModel
from models.spec import BackboneSpec

CONCURRENT: Final = (1, 4, 16)
N_ROUNDS: Final = 5
N_FRAMES: Final = 16
N_PROMPT: Final = 40
BATCH: Final = 8
N_STEPS: Final = 40
N_CODES: Final = 4096
FIRST_CODE: Final = 7_000
N_IDS: Final = FIRST_CODE + N_SLOTS * N_CODES
SHAPE: Final = BackboneSpec(
    n_layers=10, n_query_heads=16, n_kv_heads=4, head_dim=64, hidden=1024, max_positions=512
)
INNER: Final = 2816
THETA: Final = 500_000.0
EPS: Final = 1e-5
SNAC: Final = SnacConfig(
    sample_rate_hz=24_000,
    latent=768,
    decoder_channels=1024,
    decoder_strides=(8, 8, 4, 2),
    n_codes=N_CODES,
    code_dim=8,
    vq_strides=(4, 2, 1),
    has_noise=True,
    is_depthwise=True,
)
_HF_PARTS: Final = {
    "self_attn.q_proj": (SHAPE.n_query_heads * SHAPE.head_dim, SHAPE.hidden),
    "self_attn.k_proj": (SHAPE.n_kv_heads * SHAPE.head_dim, SHAPE.hidden),
    "self_attn.v_proj": (SHAPE.n_kv_heads * SHAPE.head_dim, SHAPE.hidden),
    "self_attn.o_proj": (SHAPE.hidden, SHAPE.n_query_heads * SHAPE.head_dim),
    "mlp.gate_proj": (INNER, SHAPE.hidden),
    "mlp.up_proj": (INNER, SHAPE.hidden),
    "mlp.down_proj": (SHAPE.hidden, INNER),
}

Row = dict[str, Any]


def random_weights() -> dict[str, Tensor]:
    """Of the LM, by the names of `transformers`."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return 0.03 * torch.randn(*shape, generator=generator)

    weights = {"model.embed_tokens.weight": draw(N_IDS, SHAPE.hidden)}
    weights["lm_head.weight"] = draw(N_IDS, SHAPE.hidden)
    weights["model.norm.weight"] = torch.ones(SHAPE.hidden)
    for layer in range(SHAPE.n_layers):
        stem = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{stem}{name}.weight"] = torch.ones(SHAPE.hidden)
        for name, shape in _HF_PARTS.items():
            weights[f"{stem}{name}.weight"] = draw(*shape)
    return weights


class EndlessModel(OrpheusModel):
    """Never draws the stop id: each request is as long as `transformers` is told to make it."""

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """See `OrpheusModel.constrain`."""
        [own] = super().constrain(state, logits, feed)
        own[:, self.config.ids.speech_end - self.config.id_range[0]] = -torch.inf
        return [own]


def our_model(weights: dict[str, Tensor], dtype: torch.dtype) -> OrpheusModel:
    """The model behind the contract; the decoder of PCM stays in float32."""
    config = OrpheusConfig(
        llama=LlamaConfig(
            backbone=SHAPE, inner=INNER, n_ids=N_IDS, eps=EPS, theta=THETA, scaling=None
        ),
        is_tied=False,
        ids=OrpheusIds(
            text_start=0,
            text_end=1,
            human_start=2,
            human_end=3,
            ai_start=4,
            speech_start=5,
            speech_end=FIRST_CODE - 1,
            first_code=FIRST_CODE,
        ),
        snac=SNAC,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        snac = Snac(SNAC)
    model = EndlessModel(config, Tokenizer(WordLevel({"x": 0}, "x")), weights, snac)
    for part in (model.decoder, model.table, model.head):
        part.to(dtype)
    pack(model)
    return model


def their_model(weights: dict[str, Tensor], dtype: torch.dtype) -> Any:  # noqa: ANN401  untyped
    """The same LM in `transformers`."""
    from transformers import LlamaConfig as HfConfig
    from transformers import LlamaForCausalLM

    config = HfConfig(
        vocab_size=N_IDS,
        hidden_size=SHAPE.hidden,
        intermediate_size=INNER,
        num_hidden_layers=SHAPE.n_layers,
        num_attention_heads=SHAPE.n_query_heads,
        num_key_value_heads=SHAPE.n_kv_heads,
        head_dim=SHAPE.head_dim,
        max_position_embeddings=SHAPE.max_positions,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model.load_state_dict(weights)
    for part in (model.model.layers, model.model.embed_tokens, model.model.norm, model.lm_head):
        part.to(dtype)
    model.eval()  # type: ignore[no-untyped-call] # transformers is untyped here
    return model


def plan_of(model: OrpheusModel, n_frames: int) -> PromptPlan:
    """A prompt of `N_PROMPT` rows."""
    ids = torch.arange(N_PROMPT).remainder(100).add(10).unsqueeze(1)
    state = torch.zeros(STATE_SIZE, dtype=torch.int64)
    sampling = {"ids": model.spec.phases[0].columns[0].sampling}
    return PromptPlan(ids=ids, state=state, max_frames=n_frames, sampling=sampling)


class Ours:
    """The engine with the model, warm."""

    def __init__(self, model: OrpheusModel, dtype: torch.dtype) -> None:
        self.model = model
        self.n_finished = 0
        self._next_id = 0
        config = EngineConfig(
            max_streams=max(*CONCURRENT, BATCH), policy="throughput", target_load=1.0
        )
        self.loop = EngineLoop(model, config, self._take, time.monotonic, dtype=dtype)
        self.loop.warm_up()

    def _take(self, events: Sequence[EngineEvent]) -> None:
        self.n_finished += sum(isinstance(event, StreamFinished) for event in events)

    def open(self, n_streams: int, n_frames: int) -> None:
        """Streams to be run by steps."""
        for _ in range(n_streams):
            self._next_id += 1
            command = OpenStream(
                stream_id=StreamId(self._next_id),
                plan=plan_of(self.model, n_frames),
                seed=self._next_id,
                asked_s=time.monotonic(),
                is_paced=False,
            )
            self.loop.inbox.put(command)

    def run(self, n_streams: int) -> float:
        """Seconds that so many requests take side by side."""
        self.n_finished = 0
        self.open(n_streams, N_FRAMES)
        start_s = time.perf_counter()
        while self.n_finished < n_streams:
            self.loop.step()
        return time.perf_counter() - start_s


class Theirs:
    """`transformers` with the same LM, and the same decoder of PCM."""

    def __init__(self, model: Any, snac: Snac) -> None:  # noqa: ANN401  untyped
        self.model, self.snac = model, snac

    @torch.inference_mode()
    def run(self) -> float:
        """Seconds that one request takes."""
        start_s = time.perf_counter()
        n_rows = N_SLOTS * N_FRAMES
        ids = torch.arange(N_PROMPT).remainder(100).add(10).unsqueeze(0)
        made = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.6,
            top_p=0.8,
            top_k=0,
            repetition_penalty=1.3,
            min_new_tokens=n_rows,
            max_new_tokens=n_rows,
        )
        # Random weights draw ids of any slot: what is decoded only has to be as much.
        codes = made[0, N_PROMPT:].remainder(N_CODES).view(1, N_FRAMES, N_SLOTS)
        span = Span(start=torch.tensor([0]), end=torch.tensor([N_FRAMES]))
        self.snac(codes[:, :, list(SLOT_ORDER)], span)
        return time.perf_counter() - start_s


def compare(ours: Ours, theirs: Theirs) -> list[Row]:
    """Audio seconds per second at each number of requests, in rounds that measure all of them.

    So many requests one after another take so many times as long as one.
    """
    rounds = [(theirs.run(), [ours.run(n) for n in CONCURRENT]) for _ in range(N_ROUNDS)]
    audio_s = N_FRAMES * SNAC.samples_per_frame / SNAC.sample_rate_hz
    rows = []
    for place, n_streams in enumerate(CONCURRENT):
        own_s = statistics.median(own[place] for _, own in rounds)
        rows.append(
            {
                "n_streams": n_streams,
                "ours_audio_s_per_s": n_streams * audio_s / own_s,
                "theirs_audio_s_per_s": audio_s / statistics.median(one for one, _ in rounds),
                "ratio": statistics.median(n_streams * one / own[place] for one, own in rounds),
            }
        )
    return rows


def step_over_products(ours: Ours, dtype: torch.dtype) -> Row:
    """A decode step of `BATCH` streams against the matrix products in it, in turns.

    The products alone are measured twice: as torch does them, and with the weights as the engine
    has them.
    """
    loop, model = ours.loop, ours.model
    ours.open(BATCH, N_STEPS)
    for _ in range(BATCH):
        loop.step()
    assert loop.stats.n_active == BATCH, f"not all decode: {loop.stats}"
    of_lm = [*model.decoder.modules(), model.head]
    packed = [layer for layer in of_lm if isinstance(layer, PackedLinear)]
    plain = [linear_of(torch.randn(p.out_features, p.in_features, dtype=dtype)) for p in packed]
    inputs = [torch.randn(BATCH, layer.in_features).to(dtype) for layer in packed]

    @torch.inference_mode()
    def multiply(layers: Sequence[torch.nn.Module]) -> None:
        for layer, rows in zip(layers, inputs, strict=True):
            layer(rows)

    rounds = []
    for _ in range(N_STEPS):
        before = loop.metrics.chunk_streams.n
        step_ms = _timed_ms(loop.step)
        # Only steps without a call of the detokenizer are steps of the LM.
        if loop.metrics.chunk_streams.n == before:
            bare = [_timed_ms(partial(multiply, layers)) for layers in (plain, packed)]
            rounds.append((step_ms, *bare))
    step_ms, products_ms, packed_ms = (
        statistics.median(part) for part in zip(*rounds, strict=True)
    )
    return {
        "batch": BATCH,
        "step_ms": step_ms,
        "products_ms": products_ms,
        "packed_products_ms": packed_ms,
        "ratio": statistics.median(step / bare for step, bare, _ in rounds),
        "packed_ratio": statistics.median(step / bare for step, _, bare in rounds),
    }


def _timed_ms(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return (time.perf_counter() - start_s) * 1000


def main(name: str) -> None:
    """Measure in one precision and print the rows."""
    torch.set_num_threads(1)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    weights = random_weights()
    ours = Ours(our_model(weights, dtype), dtype)
    theirs = Theirs(their_model(weights, dtype), ours.model.snac)
    theirs.run()
    rows = [{"dtype": name, **row} for row in compare(ours, theirs)]
    step = {"dtype": name, **step_over_products(ours, dtype)}
    json.dump({"generation": rows, "step": step}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
