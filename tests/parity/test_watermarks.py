"""Marks against the packages that they come from.

SilentCipher on small random weights, its batch norms at rest. Where it is given the power of the
whole signal it is the package's own, to 1e-6; by what was heard so far it is as near as stated.
Perth with its published weights, on recorded speech: the package finds what we mark. 2e-6.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.device import load_on
from loadtest.traffic.recordings import FOLDER
from models.audio.resample import resample
from models.base import SpeechModel
from models.spec import PlanRequest
from models.watermark.marked import Marked
from models.watermark.perth import load_perth
from models.watermark.silent_cipher import ENERGY, SDR_DB, SilentCipher, load_silent_cipher
from models.watermark.spectra import Columns
from models.watermark.stage import Stage
from realtime.audio.files import read_audio
from tests.engine.harness import Engine
from tests.models.watermark.detector import load_detector
from tests.models.watermark.tiny import MESSAGE, frame, start, whole
from tests.parity.oracle import APART, ask

CIPHER_HZ, PERTH_HZ, SPOKEN_HZ = 44_100, 32_000, 24_000
WIDTH = 480
PERTH_FOLDER = APART / "watermark" / "perth" / "perth_net" / "pretrained" / "implicit"


class WholeCipher(SilentCipher):
    """As the package does it: by the power of a signal that is known whole."""

    signal: Tensor

    def _loudness(self, had: Tensor, columns: Columns) -> Tensor:
        return torch.full_like(had, float((ENERGY / self.signal.square().mean()).sqrt()))

    def _strength(self, had: Tensor, columns: Columns, before: Tensor) -> tuple[Tensor, Tensor]:
        n_padded = int(self.padded(torch.tensor(len(self.signal))))
        padded = torch.nn.functional.pad(self.signal, (0, n_padded - len(self.signal)))
        window = torch.hann_window(self.n_fft)
        spectra = torch.stft(padded, self.n_fft, self.n_hop, window=window, return_complex=True)
        strength = spectra.abs().square().mean().sqrt() * 10 ** (-SDR_DB / 20)
        n = columns.count - 2 * self.reach
        return strength.expand(len(had), n), torch.zeros(len(had), n + 1)


def after_silence(n: int, *, seed: int) -> Tensor:
    """As `swelling`, after a moment of next to nothing."""
    return swelling(n, seed=seed) * torch.where(torch.arange(n) < n // 3, 1e-6, 1.0)


def swelling(n: int, *, seed: int) -> Tensor:
    """Noise and a tone that come and go."""
    at = torch.arange(n) / CIPHER_HZ
    noise = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return 0.05 * noise * (0.2 + (18 * at).sin().abs()) + 0.1 * (2765 * at).sin()


@pytest.fixture(scope="module")
def signals() -> dict[str, Tensor]:
    """Of any length, shorter than a message, and of whole transforms."""
    lengths = {"long": 9000, "short": 777, "even": 20 * 256}
    made = {name: swelling(n, seed=seed) for seed, (name, n) in enumerate(lengths.items())}
    return {**made, "late": after_silence(6000, seed=4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("watermarks")


@pytest.fixture(scope="module")
def marked(folder, signals) -> dict[str, Tensor]:
    inputs = {**signals, "message": torch.tensor(list(MESSAGE))}
    return ask("silent_cipher", folder, inputs, apart="watermark")


def distance_db(one: Tensor, other: Tensor, signal: Tensor) -> float:
    """How far two marks are from each other, against the second."""
    return float(20 * torch.log10((one - other).norm() / (other - signal).norm()))


@pytest.mark.parametrize("name", ["long", "short", "even", "late"])
def test_the_cipher_is_the_packages_by_the_power_of_the_whole(marked, folder, signals, name):
    cipher = load_silent_cipher(folder / "cipher", MESSAGE)
    cipher.__class__ = WholeCipher
    cipher.signal = signals[name]
    ours = whole(Stage(cipher, frame(CIPHER_HZ, 100)), signals[name][None])[0]
    expected = marked[f"{name}.resting"]
    assert (expected - signals[name]).abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["long", "short", "even", "late"])
def test_the_cipher_by_what_was_heard_is_near_that(marked, folder, signals, name):
    """The same pattern, somewhat stronger or weaker where the loudness is not known yet."""
    cipher = load_silent_cipher(folder / "cipher", MESSAGE)
    ours = whole(Stage(cipher, frame(CIPHER_HZ, 100)), signals[name][None])[0]
    assert distance_db(ours, marked[f"{name}.resting"], signals[name]) < -6


def test_what_finds_the_message_reads_as_the_package_does(marked, folder):
    """On random weights it reads noise, but the same: with real ones it would find ours."""
    detector = load_detector(folder / "cipher")
    logits = detector(marked["long.resting"])
    assert marked["logits"].std(dim=0).min() > 1e-3, "columns differ"
    torch.testing.assert_close(logits, marked["logits"], atol=1e-4, rtol=1e-4)


def test_batch_norms_in_training_would_need_the_whole(marked, signals):
    """Why ours are at rest: with the package's own use a mark depends on all of its signal."""
    far = distance_db(marked["short.training"], marked["short.resting"], signals["short"])
    assert far > -10
    near = distance_db(marked["long.training"], marked["long.resting"], signals["long"])
    assert near < -60, "of that signal the averages are"


@pytest.fixture(scope="module")
def perth():
    return load_perth(PERTH_FOLDER)


@pytest.fixture(scope="module")
def speech() -> Tensor:
    """Recorded, 1.6 s of it at the rate of most models."""
    pcm, rate_hz = read_audio(FOLDER / "italy.opus")
    return resample(torch.from_numpy(pcm), rate_hz, SPOKEN_HZ)[: 80 * WIDTH]


@pytest.fixture(scope="module")
def found(perth, speech, tmp_path_factory) -> dict[str, Tensor]:
    """What the package marks, and what it finds in it, in ours and in what is not marked."""
    stage = Stage(perth, frame(SPOKEN_HZ, WIDTH))
    state, chunks = start(stage, 1), []
    for n in range(0, 80, 8):
        chunk = speech[None, n * WIDTH : (n + 8) * WIDTH]
        counts = torch.tensor([chunk.shape[1]])
        with torch.inference_mode():
            given, n_given, state = stage(chunk, counts, state, torch.tensor([n == 72]))
        chunks.append(given[0, : n_given[0]])
    there = resample(speech, SPOKEN_HZ, PERTH_HZ)
    pico = load_on("pico")
    inputs = {
        "speech": there,
        "found.bare": there.clone(),
        "found.streamed": resample(torch.cat(chunks), SPOKEN_HZ, PERTH_HZ),
        "found.pico": said(pico),
        "found.marked pico": said(Marked(pico, perth)),
    }
    return ask("perth_mark", tmp_path_factory.mktemp("perth"), inputs, apart="watermark")


def said(model: SpeechModel) -> Tensor:
    """A sentence of a model on the engine, as the package hears it."""
    plan = model.plan(PlanRequest(text="Good morning. It is a fine day.", seed=1))
    (pcm,) = Engine(model).speak([plan], seeds=[1])
    return resample(torch.from_numpy(pcm), model.spec.frame.sample_rate_hz, PERTH_HZ)


def test_perth_marks_as_the_package_does(perth, speech, found):
    """The package loses what is behind its last whole column."""
    there = resample(speech, SPOKEN_HZ, PERTH_HZ)
    ours = whole(Stage(perth, frame(PERTH_HZ, 320)), there[None])[0]
    expected = found["speech"]
    n_lost = len(there) - len(expected)
    assert 0 <= n_lost < 320
    assert (expected - there[: len(expected)]).abs().max() > 0.01
    torch.testing.assert_close(ours[: len(expected)], expected, atol=2e-6, rtol=0)


def test_the_package_finds_what_was_marked_in_a_stream(found):
    assert found["found.bare.found"] < 0.1
    assert found["found.streamed.found"] > 0.9
    assert found["speech.found"] > 0.9, "its own"


def test_the_package_finds_the_mark_in_what_the_embedded_model_speaks(found):
    """All of it as it is published: the model, the mark, and what finds it."""
    assert found["found.pico.found"] < 0.1
    assert found["found.marked pico.found"] > 0.9
