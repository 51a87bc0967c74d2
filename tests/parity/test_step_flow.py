"""Step-Audio 2's token2wav on small random weights in its layout, against its own streaming run.

Mel frames and PCM of chunks that remember those before them, the prompt among them for good. The
reference is given our noise, by time; and what it keeps is what it means to keep (see
`oracles/step_token2wav.py`). Mel frames of up to 5: 1e-4. PCM of up to 0.3: 1e-4, as `test_hift`.
"""

from __future__ import annotations

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
from tests.parity.oracle import ask
from tests.parity.test_token2wav import speak

N_MELS = 16
FIRST, LAST = 38, 50
"""Tokens that are kept: of the prompt, and of what was said last."""
LENGTHS = (9, 112, 156)
"""12 tokens make the first chunk, and 25 each following one; the last has a tail."""
TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("token2wav")
    ask("step_token2wav", made, apart="step")
    return made


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
    given = {f"tokens{n}": tokens[:n].clone() for n in LENGTHS}
    return ask("step_token2wav", folder, {**inputs, **given}, apart="step")


def keeping(config: VocoderConfig, *, first: int, last: int, dtype: str) -> VocoderConfig:
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


def voice(model: Token2Wav, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return model.seed(inputs["prompt"], inputs["mel"].T, inputs["speaker"])


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
