"""Perth beside its parity: where it is laid, and what is refused."""

from __future__ import annotations

import pytest
import torch
import yaml

from models.errors import WeightError
from models.watermark.perth import load_perth
from models.watermark.stage import Stage
from tests.models.watermark.tiny import (
    PERTH,
    PERTH_HPARAMS,
    frame,
    make_perth,
    make_perth_folder,
    start,
    whole,
)

NEWEST = "perth_net_000250.pth.tar"


def signal(n: int = 6000) -> torch.Tensor:
    return 0.1 * torch.randn(1, n, generator=torch.Generator().manual_seed(0))


def test_silence_stays_silence():
    stage = Stage(make_perth(), frame(24_000, 320))
    assert (whole(stage, torch.zeros(1, 6400)) == 0).all()


def test_digital_silence_between_words_is_not_marked():
    stage = Stage(make_perth(), frame(32_000, 320))
    pcm = signal()
    pcm[:, 2000:4000] = 0.0
    added = whole(stage, pcm) - pcm
    quiet = slice(2000 + PERTH.n_fft, 4000 - PERTH.n_fft)
    assert (added[:, quiet] == 0).all()
    assert (added[:, :1500] != 0).any()
    assert (added[:, 4500:] != 0).any()


@pytest.mark.parametrize("sizes", [[6400], [3200, 1600, 1600]], ids=str)
def test_what_is_far_below_the_loudest_is_not_marked(sizes):
    """The loudest is remembered from chunk to chunk: here nothing is loud in the last of them."""
    stage = Stage(make_perth(), frame(32_000, 320))
    pcm = signal(6400)
    pcm[:, 2000:] *= 3e-9
    marked = torch.cat(stream(stage, pcm, sizes))
    edge = 2000 + PERTH.n_fft
    assert (marked[edge:] == pcm[0, edge:]).all()
    assert (marked[:1500] != pcm[0, :1500]).any()


def stream(stage: Stage, pcm: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    state, given = start(stage, 1), []
    for n, part in enumerate(pcm.split(sizes, dim=1)):
        is_last = torch.tensor([n == len(sizes) - 1])
        with torch.inference_mode():
            out, count, state = stage(part, torch.tensor([part.shape[1]]), state, is_last)
        given.append(out[0, : count[0]])
    return given


def test_only_the_band_is_changed():
    stage = Stage(make_perth(), frame(32_000, 320))
    pcm = signal()
    added = (whole(stage, pcm) - pcm)[0, 500:-500]
    power = torch.fft.rfft(added * torch.hann_window(len(added))).abs().square()
    edge = round(2 * len(power) * (PERTH.n_band + 1) / PERTH.n_fft)
    assert power[edge:].sum() < 1e-3 * power.sum()


def test_the_published_layout_loads(tmp_path):
    """The newest step, of several."""
    pcm = signal()
    loaded = load_perth(make_perth_folder(tmp_path))
    expected = whole(Stage(make_perth(), frame(32_000, 320)), pcm)
    assert torch.equal(whole(Stage(loaded, frame(32_000, 320)), pcm), expected)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("sample_rate", None, "does not state sample_rate"),
        ("hidden_size", 2.5, "hidden_size = 2.5, must be a whole number"),
        ("window_fn", "kaiser", "window_fn = 'kaiser', must be 'hann'"),
        ("window_size", 100, "window_size = 100, must be 128"),
        ("max_wmark_freq", 0, "max_wmark_freq gives a band of 0 bins"),
    ],
)
def test_what_is_stated_otherwise_is_named(tmp_path, key, value, shown):
    folder = make_perth_folder(tmp_path)
    (folder / "hparams.yaml").write_text(yaml.safe_dump({**PERTH_HPARAMS, key: value}))
    with pytest.raises(WeightError, match=shown):
        load_perth(folder)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"encoder.layers.3.conv.weight": None}, "missing: encoder.layers.3.conv.weight"),
        ({"encoder.layers.9.conv.bias": torch.ones(2)}, "unexpected: encoder.layers.9.conv.bias"),
        ({"encoder.layers.0.conv.bias": torch.ones(2)}, r"encoder.layers.0.conv.bias is \(2,\)"),
        ({"stray.weight": torch.ones(2)}, "of no Perth: stray.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, change, shown):
    folder = make_perth_folder(tmp_path)
    held = torch.load(folder / NEWEST, weights_only=True)["model"] | change
    kept = {key: tensor for key, tensor in held.items() if tensor is not None}
    torch.save({"model": kept, "step": 250}, folder / NEWEST)
    with pytest.raises(WeightError, match=shown):
        load_perth(folder)
