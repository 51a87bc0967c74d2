"""Speech tokens to mel frames against CosyVoice's class, on random weights in its layout.

Tolerance 2e-4 on mel frames of about 1: what `test_conformer` and `test_flow` allow, together.
"""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.speech_flow import SpeechFlow, SpeechFlowConfig, make_speech_flow
from models.codecs.unet import Unet
from models.errors import WeightError
from tests.parity.oracle import ask
from tests.parity.test_conformer import CONFIG as ENCODER
from tests.parity.test_flow import CONFIG as FLOW
from tests.parity.test_flow import UNET

N_PROMPT, N_TOKENS = 10, 17
TOLERANCE = 2e-4
CONFIG = SpeechFlowConfig(n_tokens=50, speaker_dim=16, encoder=ENCODER, flow=FLOW)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        "prompt": torch.randint(0, 50, (1, N_PROMPT), generator=generator),
        "tokens": torch.randint(0, 50, (1, N_TOKENS), generator=generator),
        "mel": torch.randn(1, 2 * N_PROMPT, 80, generator=generator),
        "embedding": torch.randn(1, 16, generator=generator),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("speech_flow")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("speech_flow", folder, inputs, apart="cosyvoice")


@pytest.fixture(scope="module")
def model(folder, reference) -> SpeechFlow:
    return make_speech_flow(
        CONFIG, Unet(UNET), read_torch_file(folder / "flow.pt"), source="flow.pt"
    )


def speak(
    model: SpeechFlow, inputs: dict[str, torch.Tensor], n_tokens: int, *, is_chunked: bool
) -> torch.Tensor:
    """Mel frames behind the prompt's; a second row of the batch has other tokens, and fewer."""
    tokens = torch.cat([inputs["prompt"], inputs["tokens"][:, :n_tokens]], dim=1)
    known = torch.zeros(2, 80, 2 * tokens.shape[1])
    known[:1, :, : 2 * N_PROMPT] = inputs["mel"].transpose(1, 2)
    speakers = model.speaker(torch.cat([inputs["embedding"], -inputs["embedding"]]))
    rows = torch.cat([tokens, tokens.flip(1)])
    n_valid = torch.tensor([tokens.shape[1], 6])
    mel = model(rows, n_valid, known, speakers, is_chunked=is_chunked)
    assert not mel[1, :, 12:].any()
    return mel[0, :, 2 * N_PROMPT :]


@pytest.mark.parametrize(("name", "is_chunked"), [("chunked", True), ("whole", False)])
def test_the_mel_frames_are_the_reference_s(model, inputs, reference, name, is_chunked):
    expected = reference[name]
    assert expected.shape == (80, 2 * N_TOKENS)
    mel = speak(model, inputs, N_TOKENS, is_chunked=is_chunked)
    torch.testing.assert_close(mel, expected, atol=TOLERANCE, rtol=0)


def test_whole_chunks_are_final_once_their_look_ahead_is_there(model, inputs, reference):
    """The reference is asked for two chunks before it has the rest, and gives the same."""
    assert reference["early"].shape == (80, 20)
    early = speak(model, inputs, 13, is_chunked=True)[:, :20]
    torch.testing.assert_close(early, reference["early"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(early, reference["chunked"][:, :20], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("encoder_proj.bias", None, "missing: encoder_proj.bias"),
        ("input_embedding.weight", torch.zeros(3, 512), "unfit: input_embedding.weight"),
        ("decoder.more", torch.zeros(3), "unexpected: decoder.more"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, key, tensor, shown):
    held = read_torch_file(folder / "flow.pt")
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    with pytest.raises(WeightError, match=shown):
        make_speech_flow(CONFIG, Unet(UNET), held, source="flow.pt")
