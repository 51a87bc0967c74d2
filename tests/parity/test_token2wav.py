"""Speech tokens to PCM, streamed, against CosyVoice 2's own streaming run, on random weights.

The reference computes all that came before again for each hop; ours looks back at what it
remembers. Tolerance 2e-5 on mel frames of up to 5 (7e-6 was seen, and 2e-6 between patterns of
calls): float32 through ten steps. On PCM of up to 0.3 2e-3: the pitch of the source follows from
the mel frames, and its phase adds their rounding up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.base import Decoded
from models.checkpoint import read_torch_file
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift import make_hift
from models.codecs.hift_source import first_phases, noise_table
from models.codecs.speech_flow import SpeechFlowConfig, make_speech_flow
from models.codecs.token2wav import Token2Wav, Token2WavConfig
from models.codecs.unet import Unet
from models.spec import CodecSpec
from tests.parity.oracle import ask
from tests.parity.test_conformer import CONFIG as ENCODER
from tests.parity.test_flow import CONFIG as FLOW
from tests.parity.test_flow import UNET
from tests.parity.test_hift import CONFIGS

N_PROMPT = (14, 4)
LENGTHS = (1, 2, 5, 8, 23)
N_TOKENS = max(LENGTHS)
KEPT = KeptFrames(first=40, last=40, dtype="float32")
FLOWS = SpeechFlowConfig(
    n_tokens=50, speaker_dim=16, encoder=ENCODER, flow=replace(FLOW, kept=KEPT)
)
VOCODER = replace(CONFIGS[24_000], n_mels=80)
CONFIG = Token2WavConfig(first_tokens=1, vocoder_frames=VOCODER.reach)


@pytest.fixture(scope="module")
def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        "prompt": torch.randint(0, 50, (1, max(N_PROMPT)), generator=generator),
        "tokens": torch.randint(0, 50, (1, N_TOKENS), generator=generator),
        "mel": torch.randn(1, 2 * max(N_PROMPT), 80, generator=generator),
        "embedding": torch.randn(1, 16, generator=generator),
        "n_prompt": torch.tensor(N_PROMPT),
        "lengths": torch.tensor(LENGTHS),
        "noise": noise_table(9),
        "phases": first_phases(9),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("token2wav")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, Tensor]:
    return ask("token2wav", folder, inputs, apart="cosyvoice")


def make(folder, flows: SpeechFlowConfig = FLOWS, config: Token2WavConfig = CONFIG) -> Token2Wav:
    flow = make_speech_flow(flows, Unet(UNET), read_torch_file(folder / "flow.pt"), source="flow")
    hift = make_hift(VOCODER, read_torch_file(folder / "hift.pt"), source="hift")
    return Token2Wav(flow, hift, config)


@pytest.fixture(scope="module")
def model(folder, reference) -> Token2Wav:
    return make(folder)


def voice(model: Token2Wav, inputs: dict[str, Tensor], n_prompt: int) -> dict[str, Tensor]:
    mel = inputs["mel"][0, : 2 * n_prompt].T
    return model.seed(inputs["prompt"][0, :n_prompt], mel, inputs["embedding"][0])


def opened(model: Token2Wav, seed: dict[str, Tensor]) -> dict[str, Tensor]:
    """State of one stream that begins, as the engine makes it."""
    return {
        one.name: seed.get(
            one.name, torch.zeros(one.shape, dtype=getattr(torch, one.dtype))
        ).unsqueeze(0)
        for one in model.spec.state
    }


def calls(spec: CodecSpec, n_tokens: int, choices: list[int]) -> Iterator[tuple[int, int, bool]]:
    """Of each call: its size, chosen by `choices` over and over; new tokens; is it the last."""
    n_left, idx = n_tokens, 0
    while True:
        sizes = spec.sizes(idx)
        size = sizes[choices[idx % len(choices)] % len(sizes)]
        fitting = [one for one in sizes if one >= n_left + spec.last_room_frames]
        if fitting and (size in fitting or size > n_left):
            yield (size if size in fitting else fitting[0]), n_left, True
            return
        size = size if size <= n_left else max(one for one in sizes if one <= n_left)
        yield size, size, False
        n_left -= size
        idx += 1


def speak(model: Token2Wav, seed: dict[str, Tensor], tokens: Tensor, choices: list[int]) -> Tensor:
    """PCM of a stream's tokens `(n,)`."""
    state, pcm, n_done = opened(model, seed), [], 0
    for idx, (size, n_valid, is_last) in enumerate(calls(model.spec, len(tokens), choices)):
        frames = torch.zeros(1, size, 1, dtype=torch.int64)
        frames[0, :n_valid, 0] = tokens[n_done : n_done + n_valid]
        with torch.inference_mode():
            decoded = model.decode(
                frames,
                torch.tensor([n_valid]),
                state,
                torch.tensor([idx == 0]),
                torch.tensor([is_last]),
            )
        state = decoded.state
        assert state.keys() == {one.name for one in model.spec.state}
        pcm.append(decoded.pcm[0, : decoded.n_samples[0]])
        assert not decoded.pcm[0, decoded.n_samples[0] :].any()
        n_done += n_valid
    return torch.cat(pcm)


def mel_of(
    model: Token2Wav,
    seed: dict[str, Tensor],
    tokens: Tensor,
    choices: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> Tensor:
    """Mel frames that the vocoder is given, `(n_mels, 2 * n)`; it stays silent."""
    given: list[Tensor] = []

    def listen(mel: Tensor, n_valid: Tensor, state: dict[str, Tensor], is_last: Tensor) -> Decoded:
        given.append(mel[0, :, : n_valid[0]])
        same = {one.name: state[one.name] for one in model.hift.states}
        return Decoded(pcm=mel.new_zeros(1, 0), n_samples=torch.zeros_like(n_valid), state=same)

    with monkeypatch.context() as patch:
        patch.setattr(model.hift, "decode", listen)
        speak(model, seed, tokens, choices)
    return torch.cat(given, dim=1)


PATTERNS = ([0], [1], [0, 1], [1, 0, 0])


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("row", range(len(N_PROMPT)))
def test_the_mel_frames_are_those_of_the_reference_s_stream(
    model, inputs, reference, row, n_tokens, monkeypatch
):
    seed, tokens = voice(model, inputs, N_PROMPT[row]), inputs["tokens"][0, :n_tokens]
    expected = reference[f"mel_{row}_{n_tokens}"]
    patterns = [mel_of(model, seed, tokens, choices, monkeypatch) for choices in PATTERNS]
    assert expected.std() > 0.5
    for mel in patterns:
        torch.testing.assert_close(mel, expected, atol=2e-5, rtol=0)
        torch.testing.assert_close(mel, patterns[0], atol=5e-6, rtol=0)


@pytest.mark.parametrize(
    ("kept", "n_same"),
    [
        (KeptFrames(first=0, last=20, dtype="float32"), 2),
        (KeptFrames(first=20, last=20, dtype="float32"), 22),
    ],
)
def test_what_is_not_remembered_is_missed(
    folder, model, inputs, reference, kept, n_same, monkeypatch
):
    """Up to its last frame that saw all of its past, a stream is the reference's; then it is not.

    Behind 14 tokens of a prompt, 28 frames; chunks have 10.
    """
    flows = replace(FLOWS, flow=replace(FLOW, kept=kept))
    short = make(folder, flows)
    tokens = inputs["tokens"][0]
    mel = mel_of(short, voice(short, inputs, 14), tokens, [0], monkeypatch)
    expected = reference[f"mel_0_{N_TOKENS}"]
    torch.testing.assert_close(mel[:, :n_same], expected[:, :n_same], atol=2e-5, rtol=0)
    differs = (mel - expected)[:, n_same:].abs()
    assert 1e-3 < differs.max() < 3


@pytest.mark.parametrize("choices", PATTERNS[1:3])
@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize("row", range(len(N_PROMPT)))
def test_the_sound_is_that_of_the_reference_s_stream(
    model, inputs, reference, row, n_tokens, choices
):
    seed = voice(model, inputs, N_PROMPT[row])
    pcm = speak(model, seed, inputs["tokens"][0, :n_tokens], choices)
    expected = reference[f"pcm_{row}_{n_tokens}"]
    assert pcm.shape == expected.shape == (n_tokens * model.samples_per_frame,)
    assert expected.std() > 0.02
    torch.testing.assert_close(pcm, expected, atol=2e-3, rtol=0)
