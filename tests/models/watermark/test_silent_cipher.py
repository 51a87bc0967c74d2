"""SilentCipher beside its parity: what it spells, how loud it is, what is refused."""

from __future__ import annotations

import pytest
import torch
import yaml
from torch import Tensor

from models.errors import WeightError
from models.watermark.silent_cipher import (
    SDR_DB,
    SilentCipher,
    load_silent_cipher,
    spelt,
)
from models.watermark.spectra import Columns
from models.watermark.stage import Stage
from tests.models.watermark.detector import message_of
from tests.models.watermark.tiny import (
    CIPHER_HPARAMS,
    MESSAGE,
    frame,
    make_cipher,
    make_cipher_folder,
    whole,
)

RATE_HZ = 44_100
SLACK_DB = 0.5
"""The budget is one of spectra, whose windows weigh samples by 0.5 to 1."""


def noise(n: int, *, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(n, generator=torch.Generator().manual_seed(seed))


def shapes() -> dict[str, Tensor]:
    """How loud a signal is over time."""
    n = 12_000
    at = torch.linspace(0, 1, n)
    return {
        "even": torch.ones(n),
        "in bursts": (torch.sin(40 * at) > 0).float(),
        "loud, then quiet": torch.where(at < 0.2, 1.0, 0.02),
        "quiet, then loud": torch.where(at < 0.7, 0.005, 1.0),
        "after silence": (at > 0.5).float(),
    }


@pytest.mark.parametrize("shape", shapes())
def test_the_mark_keeps_its_distance_at_all_times(shape):
    """Whatever came before: a mean over louder speech must not drown what is quiet."""
    mark = make_cipher()
    stage = Stage(mark, frame(RATE_HZ, 100))
    pcm = noise(12_000) * shapes()[shape]
    added = whole(stage, pcm[None])[0] - pcm
    assert added.abs().max() > 0
    # What is known at a time is what has come in by then, up to the look-ahead.
    ahead = mark.n_fft + mark.reach * mark.n_hop
    known = torch.nn.functional.pad(pcm, (0, ahead)).square().cumsum(0)[ahead:]
    spent = added.square().cumsum(0)
    is_sound = known > 1e-3
    worst_db = 10 * torch.log10(spent[is_sound] / known[is_sound]).max()
    assert worst_db <= -(SDR_DB - SLACK_DB)


def test_silence_stays_silence():
    stage = Stage(make_cipher(), frame(24_000, 320))
    assert (whole(stage, torch.zeros(1, 6400)) == 0).all()


def test_a_mark_in_usual_speech_is_not_much_weaker_than_stated():
    """Else nothing could be found; it is less than stated where it would take all there is."""
    stage = Stage(make_cipher(), frame(RATE_HZ, 100))
    pcm = noise(12_000, seed=3)
    added = whole(stage, pcm[None])[0] - pcm
    sdr_db = 20 * torch.log10(pcm.norm() / added.norm())
    assert SDR_DB - SLACK_DB < sdr_db < SDR_DB + 6


def test_the_network_is_not_given_faint_noise_as_loud_as_speech():
    """By its mean alone, what comes before the first sound was amplified by 127 dB."""
    given = {}

    class Watched(SilentCipher):
        def _pattern(self, x: Tensor, columns: Columns) -> Tensor:
            given.update(zip(columns.numbers[0].tolist(), x[0].T, strict=True))
            return super()._pattern(x, columns)

    mark = make_cipher()
    mark.__class__ = Watched
    pcm = noise(6000, seed=7)
    pcm[:3000] *= 1e-6
    whole(Stage(mark, frame(RATE_HZ, 100)), pcm[None])
    n_faint = 3000 // mark.n_hop
    faint, loud = (
        max(given[n].max() for n in numbers)
        for numbers in (range(n_faint), range(n_faint + 2, 6000 // mark.n_hop))
    )
    assert faint < 1e-5 * loud


def test_a_message_is_spelt_two_bits_a_column_and_closed():
    letters = spelt(bytes([0b00_01_10_11, 0xFF, 0, 0b11_00_11_00, 1]))
    assert letters.tolist() == [1, 2, 3, 4] + [4] * 4 + [1] * 4 + [4, 1, 4, 1] + [1, 1, 1, 2, 0]


@pytest.mark.parametrize("n_skipped", [0, 1, 13, 20])
def test_what_is_spelt_is_read_again_wherever_one_begins_to_listen(n_skipped):
    letters = spelt(MESSAGE).repeat(4)[n_skipped:]
    heard = torch.nn.functional.one_hot(letters, 5).float()
    heard[30:36] = heard[30:36].roll(1, dims=1)  # Some are misheard, and outvoted.
    assert message_of(heard, len(spelt(MESSAGE))) == MESSAGE
    assert message_of(torch.zeros(63, 5).index_fill(1, torch.tensor([2]), 1.0), 21) is None


def test_another_message_is_another_mark():
    pcm = noise(9000, seed=5)[None]
    ours, same, other = (
        whole(Stage(make_cipher(message), frame(RATE_HZ, 100)), pcm)
        for message in (MESSAGE, MESSAGE, b"other")
    )
    assert torch.equal(ours, same)
    assert (ours - other).abs().max() > 1e-5


def test_the_published_layout_loads(tmp_path):
    pcm = noise(5000, seed=6)[None]
    loaded = load_silent_cipher(make_cipher_folder(tmp_path), MESSAGE)
    expected = whole(Stage(make_cipher(), frame(RATE_HZ, 100)), pcm)
    assert torch.equal(whole(Stage(loaded, frame(RATE_HZ, 100)), pcm), expected)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("SR", None, "does not state SR"),
        ("N_FFT", "wide", "N_FFT = 'wide', must be a whole number"),
        ("message_len", 16, "message_len = 16, must be 21"),
        ("message_dim", 4, "message_dim = 4, must be 5"),
        ("n_messages", 2, "n_messages = 2, must be 1"),
        ("ensure_negative_message", False, "ensure_negative_message = False"),
        ("frame_level_normalization", True, "frame_level_normalization = True"),
        ("message_band_size", 1024, "message_band_size is 1024, and there are 129 bins"),
    ],
)
def test_what_is_stated_otherwise_is_named(tmp_path, key, value, shown):
    folder = make_cipher_folder(tmp_path)
    (folder / "hparams.yaml").write_text(yaml.safe_dump({**CIPHER_HPARAMS, key: value}))
    with pytest.raises(WeightError, match=shown):
        load_silent_cipher(folder, MESSAGE)


@pytest.mark.parametrize("file", ["enc_c.ckpt", "dec_c.ckpt"])
@pytest.mark.parametrize("change", ["missing", "unexpected", "unfit"])
def test_weights_that_do_not_fit_are_named_as_the_file_has_them(tmp_path, file, change):
    folder = make_cipher_folder(tmp_path)
    held = torch.load(folder / file, weights_only=True)
    key = next(key for key in held if key.endswith("main.1.gate.weight"))
    if change == "missing":
        del held[key]
    elif change == "unfit":
        held[key] = held[key][:5]
    else:
        key = f"{key}.more"
        held[key] = torch.zeros(1)
    torch.save(held, folder / file)
    if change == "missing" and file == "dec_c.ckpt":
        key = key.removeprefix("module.")  # The file does not say how it would call it.
    with pytest.raises(WeightError, match=rf"{file} does not fit .*{change}: {key}"):
        load_silent_cipher(folder, MESSAGE)
