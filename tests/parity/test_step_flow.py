"""Step-Audio 2's token2wav on small random weights in its layout, against its own streaming run.

Mel frames and PCM of chunks that remember those before them, the prompt among them for good. The
reference is given our noise, by time; and what it keeps is what it means to keep (see
`oracles/step_token2wav.py`). Mel frames of up to 5: 1e-4. PCM of up to 0.3: 1e-4, as `test_hift`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.codecs.flow import flow_noise
from models.codecs.flow_memory import KeptFrames
from models.codecs.hift_source import first_phases, noise_table
from models.codecs.token2wav import Token2Wav
from models.step_audio2.vocoder import HIFT, VocoderConfig, read_vocoder_config
from tests.models.checkpoints import made
from tests.parity.oracle import ask
from tests.parity.test_token2wav import opened, speak

N_MELS = 16
FIRST, LAST = 38, 50
"""Tokens that are kept: of the prompt, and of what was said last."""
LENGTHS = (9, 112, 156)
"""12 tokens make the first chunk, and 25 each following one; the last has a tail."""
SHORTER, N_SHORT_PROMPT = 87, 20
"""A stream whose voice has a prompt that is shorter than what is kept of one."""
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A copy to work in."""
    return Path(shutil.copytree(made("step-audio2"), tmp_path_factory.mktemp("step") / "copy"))


@pytest.fixture(scope="module")
def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "prompt": torch.randint(0, 6561, (FIRST,), generator=generator),
        "mel": torch.randn(2 * FIRST, N_MELS, generator=generator),
        "speaker": torch.randn(192, generator=generator),
        "flow_noise": flow_noise(N_MELS),
        "noise": noise_table(9),
        "phases": first_phases(9),
        "n_last": torch.tensor(2 * LAST),
    }


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(0, 6561, (max(LENGTHS),), generator=generator)


@pytest.fixture(scope="module")
def reference(folder, inputs, tokens) -> dict[str, Tensor]:
    given = {f"tokens{n}": tokens[:n].clone() for n in (*LENGTHS, SHORTER)}
    given[f"n_prompt{SHORTER}"] = torch.tensor(N_SHORT_PROMPT)
    return ask("step_token2wav", folder, {**inputs, **given}, apart="step")


def keeping(
    config: VocoderConfig, *, first: int, last: int, dtype: str = "float16"
) -> VocoderConfig:
    """The same, but for how much of the past is kept, and in which precision."""
    flow = config.flow
    encoder = replace(flow.encoder, first_tokens=first, kept_tokens=last, dtype=dtype)
    kept = KeptFrames(first=2 * first, last=2 * last, dtype=dtype)
    return replace(
        config,
        flow=replace(flow, encoder=encoder, flow=replace(flow.flow, kept=kept)),
        # Whole decoding by the vocoder is what is compared with.
        streaming=replace(config.streaming, vocoder_frames=HIFT.reach),
    )


@pytest.fixture(scope="module")
def model(folder) -> Token2Wav:
    """With as much of the past as the reference keeps."""
    config = read_vocoder_config(folder / "token2wav")
    return keeping(config, first=FIRST, last=LAST, dtype="float32").load(folder / "token2wav")


def voice(model: Token2Wav, inputs: dict[str, Tensor], n: int = FIRST) -> dict[str, Tensor]:
    """Of the first n tokens of the prompt."""
    return model.seed(inputs["prompt"][:n], inputs["mel"][: 2 * n].T, inputs["speaker"])


def mel_of(monkeypatch, model: Token2Wav, seed: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Mel frames `(n_mels, 2 n)` that are made on the way to the sound."""
    given, stream = [], model.flow.stream

    def watched(*args, **options):
        mel, state = stream(*args, **options)
        given.append(mel[0])
        return mel, state

    with monkeypatch.context() as patch:
        patch.setattr(model.flow, "stream", watched)
        speak(model, seed, tokens, [0])
    return torch.cat(given, dim=1)[:, : 2 * len(tokens)]


@pytest.mark.parametrize("choices", [[0], [1], [0, 1], [1, 0, 0]])
@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_the_sound_is_that_of_the_reference_s_stream(
    model, inputs, reference, tokens, n_tokens, choices
):
    pcm = speak(model, voice(model, inputs), tokens[:n_tokens], choices)
    expected = reference[f"pcm{n_tokens}"]
    assert pcm.shape == expected.shape == (n_tokens * model.samples_per_frame,)
    assert expected.std() > 0.02
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_mel_frames_are_those_of_the_reference_s_stream(
    monkeypatch, model, inputs, reference, tokens, n_tokens
):
    got = mel_of(monkeypatch, model, voice(model, inputs), tokens[:n_tokens])
    torch.testing.assert_close(got, reference[f"mel{n_tokens}"], atol=5e-5, rtol=0)


def test_a_short_prompt_is_all_that_is_kept_for_good(monkeypatch, model, inputs, reference, tokens):
    seed = voice(model, inputs, N_SHORT_PROMPT)
    got = mel_of(monkeypatch, model, seed, tokens[:SHORTER])
    torch.testing.assert_close(got, reference[f"mel{SHORTER}"], atol=5e-5, rtol=0)


@pytest.mark.parametrize("n_tokens", [0, 1, 11, 12, 13, 36, 37, 38, 63])
def test_every_length_gives_all_of_its_samples(model, inputs, n_tokens):
    """Tails that the reference has no chunk for among them; it never gives the last 160 ms."""
    tokens = torch.arange(n_tokens) * 37 % 6561
    takes = [speak(model, voice(model, inputs, 9), tokens, choices) for choices in ([0], [1, 0])]
    assert len(takes[0]) == n_tokens * model.samples_per_frame
    torch.testing.assert_close(takes[0], takes[1], atol=TOLERANCE, rtol=0)


def test_streams_of_a_batch_do_not_touch(model, inputs, tokens):
    """Of other voices, and at other times."""
    voices = [opened(model, voice(model, inputs, n)) for n in (38, 7, 20)]
    frames = [tokens[n : n + 40].view(1, -1, 1) for n in (0, 31, 80)]
    last = [torch.tensor([is_last]) for is_last in (False, True, False)]
    first = torch.tensor([True])
    alone = [
        model.decode(one, torch.tensor([37 if end else 40]), state, first, end)
        for one, state, end in zip(frames, voices, last, strict=True)
    ]
    together = model.decode(
        torch.cat(frames),
        torch.tensor([40, 37, 40]),
        {name: torch.cat([one[name] for one in voices]) for name in voices[0]},
        first.expand(3),
        torch.cat(last),
    )
    assert together.n_samples.tolist() == [int(one.n_samples) for one in alone]
    for row, one in enumerate(alone):
        n = int(one.n_samples)
        torch.testing.assert_close(together.pcm[row, :n], one.pcm[0, :n], atol=1e-4, rtol=0)
        for name, part in one.state.items():
            torch.testing.assert_close(together.state[name][row], part[0], atol=1e-4, rtol=0)


def test_half_precision_of_what_is_remembered_costs_little(
    monkeypatch, folder, inputs, reference, tokens
):
    config = keeping(read_vocoder_config(folder / "token2wav"), first=FIRST, last=LAST)
    model = config.load(folder / "token2wav")
    n = LENGTHS[-1]
    got = mel_of(monkeypatch, model, voice(model, inputs), tokens[:n])
    error = (got - reference[f"mel{n}"]).square().mean().sqrt()
    assert 1e-6 < error < 1e-3 * reference[f"mel{n}"].std()
