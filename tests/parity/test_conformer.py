"""The upsampling conformer against CosyVoice's class, on random weights in its layout.

Tolerance 1e-4 on rows of about 1: float32 in another order of sums, through a dozen norms.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.conformer import ConformerConfig, UpsampleConformer, make_conformer
from models.codecs.place import Place
from models.errors import WeightError
from models.layers.conv import ENDLESS
from tests.parity.oracle import ask

N_VALID = (33, 7, 1)
AHEAD = 3
TOLERANCE = 1e-4
CONFIG = ConformerConfig(
    n_in=512,
    size=512,
    n_heads=4,
    inner=64,
    n_layers=2,
    n_up_layers=4,
    lookahead=AHEAD,
    chunk_tokens=5,
    kept_tokens=35,
)


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {
        "tokens": torch.randn(len(N_VALID), N_VALID[0], 512, generator=generator),
        "n_valid": torch.tensor(N_VALID),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("conformer")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("conformer_encoder", folder, inputs, apart="cosyvoice")


@pytest.fixture(scope="module")
def model(folder, reference) -> UpsampleConformer:
    return make_conformer(CONFIG, read_torch_file(folder / "encoder.pt"), source="encoder.pt")


def fresh_state(model: UpsampleConformer, n_rows: int) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.zeros(n_rows, *one.shape, dtype=getattr(torch, one.dtype))
        for one in model.states
    }


def stream(model: UpsampleConformer, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Rows of `tokens` `(n, 512)`, in whole chunks of the given sizes, over and over."""
    state, rows, n_done, turn = fresh_state(model, 1), [], 0, 0
    while n_done < len(tokens):
        size = sizes[turn % len(sizes)]
        is_last = n_done + size + AHEAD >= len(tokens)
        window = torch.full((1, size + AHEAD, 512), 5.0)
        piece = tokens[n_done : n_done + size + AHEAD]
        window[0, : len(piece)] = piece
        end = torch.tensor([len(tokens) if is_last else ENDLESS])
        place = Place(start=torch.tensor([n_done]), begin=torch.tensor([0]), end=end)
        out, state = model(window, place, state)
        n_given = len(piece) if is_last else size
        rows.append(out[0, : 2 * n_given])
        n_done += n_given
        turn += 1
    return torch.cat(rows)


@pytest.mark.parametrize(("name", "is_chunked"), [("chunked", True), ("whole", False)])
def test_rows_of_a_batch_are_the_reference_s(model, inputs, reference, name, is_chunked):
    """Of different lengths in one batch; the reference takes one at a time."""
    out = model.whole(inputs["tokens"], inputs["n_valid"], is_chunked=is_chunked)
    for row, n_tokens in enumerate(N_VALID):
        expected = reference[f"{name}{row}"]
        assert expected.shape == (2 * n_tokens, 512)
        torch.testing.assert_close(out[row, : 2 * n_tokens], expected, atol=TOLERANCE, rtol=0)


def test_the_two_ways_of_seeing_differ(reference):
    assert (reference["chunked0"] - reference["whole0"]).abs().max() > 0.05


@pytest.mark.parametrize("sizes", [[5], [10], [5, 15], [20, 5], [35]])
def test_streamed_chunks_are_the_reference_s(model, inputs, reference, sizes):
    for row, n_tokens in enumerate(N_VALID):
        out = stream(model, inputs["tokens"][row, :n_tokens], sizes)
        expected = reference[f"chunked{row}"]
        torch.testing.assert_close(out, expected, atol=TOLERANCE, rtol=0)


def test_rows_of_a_batch_may_be_at_different_times(model, inputs, reference):
    """One goes on while the other begins: its first tokens stand behind what is not there yet."""
    tokens = inputs["tokens"][0]
    zero = torch.tensor([0])
    first = Place(start=zero, begin=zero, end=torch.tensor([ENDLESS]))
    _, state = model(tokens[None, :13], first, fresh_state(model, 1))
    joined = {name: torch.cat([t, torch.zeros_like(t)]) for name, t in state.items()}
    other = inputs["tokens"][1, :7]
    windows = torch.stack([tokens[10:23], torch.cat([torch.full((5, 512), 9.0), other, other[:1]])])
    place = Place(
        start=torch.tensor([10, -5]), begin=torch.tensor([0, 0]), end=torch.tensor([ENDLESS, 7])
    )
    out, _ = model(windows, place, joined)
    expected = reference["chunked0"][20:40]
    torch.testing.assert_close(out[0, :20], expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(out[1, 10:24], reference["chunked1"], atol=TOLERANCE, rtol=0)


def test_what_is_no_longer_kept_is_not_seen_in_any_pattern(folder, inputs, reference):
    short = make_conformer(
        replace(CONFIG, kept_tokens=10), read_torch_file(folder / "encoder.pt"), source="a"
    )
    by_one, by_three = (stream(short, inputs["tokens"][0], sizes) for sizes in ([5], [15]))
    torch.testing.assert_close(by_one, by_three, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(by_one[:30], reference["chunked0"][:30], atol=TOLERANCE, rtol=0)
    assert (by_one[40:] - reference["chunked0"][40:]).abs().max() > 1e-3


def test_half_precision_is_near(folder, inputs, reference):
    half = make_conformer(
        replace(CONFIG, dtype="float16"), read_torch_file(folder / "encoder.pt"), source="a"
    )
    out = stream(half, inputs["tokens"][0], [5])
    torch.testing.assert_close(out, reference["chunked0"], atol=1e-2, rtol=0)
    by_three = stream(half, inputs["tokens"][0], [15])
    torch.testing.assert_close(by_three, out, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("up_layer.conv.bias", None, "missing: up_layer.conv.bias"),
        ("encoders.0.self_attn.pos_bias_u", torch.zeros(3), "unfit: encoders.0.self_attn"),
        ("more", torch.zeros(3), "unexpected: more"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, key, tensor, shown):
    held = read_torch_file(folder / "encoder.pt")
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    with pytest.raises(WeightError, match=shown):
        make_conformer(CONFIG, held, source="encoder.pt")
