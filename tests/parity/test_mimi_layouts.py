"""Mimi as Moshi publishes it, against the `moshi` package, on random weights in its own layout.

Tolerance as in `test_mimi`. Codes must be the same: random codebooks lie far apart.
"""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import read_config
from models.codecs.mimi import Mimi, load_mimi
from models.codecs.mimi_config import mimi_config
from models.codecs.mimi_layouts import from_moshi, is_moshi_layout
from models.errors import WeightError
from models.weights import read_tensors
from tests.parity.oracle import ask
from tests.parity.test_mimi import TOLERANCE, stream

N_FRAMES = 23
NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    codes = torch.randint(0, 64, (2, N_FRAMES, 8), generator=generator)
    return {"codes": codes, "pcm": 0.3 * torch.randn(2, 12 * 1920, generator=generator)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("moshi")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    outputs = ask("moshi_codec", folder, inputs, apart="moshi")
    assert torch.equal(outputs["pcm"], outputs["older"]), "the two files hold the same"
    return outputs


def load(folder, place: str) -> Mimi:
    config = mimi_config(read_config(folder / "config.json"))
    return load_mimi(config, read_tensors(folder / place), source=NAME)


@pytest.mark.parametrize("place", [NAME, f"older/{NAME}"])
@pytest.mark.parametrize("sizes", [[N_FRAMES], [1, 2, 4, 8]])
def test_streamed_decoding_is_the_reference_s(folder, inputs, reference, place, sizes):
    pcm = stream(load(folder, place), inputs["codes"], sizes)
    assert 0.1 < reference["pcm"].std() < 1.0
    expected = reference["pcm"].clamp(-1.0, 1.0)
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_encoding_gives_the_reference_s_codes(folder, inputs, reference):
    assert torch.equal(load(folder, NAME).encode(inputs["pcm"]), reference["codes"])


def test_a_key_of_no_layout_is_named(folder, reference):
    config = mimi_config(read_config(folder / "config.json"))
    tensors = read_tensors(folder / NAME)
    assert is_moshi_layout(tensors)
    tensors["decoder.model.0.weight"] = torch.zeros(1)
    with pytest.raises(WeightError, match=r"key of no known layout: decoder\.model\.0\.weight"):
        from_moshi(tensors, config, source=NAME)


def test_a_missing_key_is_named(folder, reference):
    config = mimi_config(read_config(folder / "config.json"))
    tensors = read_tensors(folder / NAME)
    del tensors["upsample.convtr.convtr.convtr.weight"]
    with pytest.raises(WeightError, match=r"missing: upsample\.conv\.weight"):
        load_mimi(config, tensors, source=NAME)


def test_projections_that_cannot_be_split_are_named(folder, reference):
    config = mimi_config(read_config(folder / "config.json"))
    tensors = read_tensors(folder / NAME)
    key = "decoder_transformer.transformer.layers.0.self_attn.in_projs.0.weight"
    tensors[key] = tensors[key][1:]
    with pytest.raises(WeightError, match=r"in_projs\.0\.weight is \(95, 32\), not 3 x 32"):
        load_mimi(config, tensors, source=NAME)
