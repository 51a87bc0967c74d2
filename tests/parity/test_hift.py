"""HiFT against CosyVoice's class, on random weights in its layout, in both forms.

The reference runs in float64: in float32 its phases, summed over an utterance, are themselves off
by more than what is compared. Tolerance 1e-4 on PCM of up to 0.3 (5e-5 was seen): rounding of the
pitch adds up in phases.
"""

from __future__ import annotations

import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.hift import Hift, HiftConfig, make_hift
from models.codecs.hift_source import first_phases, noise_table
from models.errors import WeightError
from tests.parity.oracle import ask

N_FRAMES = 70
LENGTHS = (1, 2, 5, 21, N_FRAMES)
TOLERANCE = 1e-4
COMMON = {
    "n_mels": 12,
    "n_channels": 32,
    "n_fft": 16,
    "n_hop": 4,
    "residual_kernels": (3, 7, 11),
    "residual_dilations": ((1, 3, 5),) * 3,
    "n_f0_channels": 16,
    "n_harmonics": 8,
    "sine_gain": 0.1,
    "noise_gain": 0.003,
    "voiced_hz": 10.0,
    "slope": 0.1,
    "limit": 0.99,
}
CONFIGS = {
    24_000: HiftConfig(
        sample_rate_hz=24_000,
        strides=(8, 5, 3),
        kernels=(16, 11, 7),
        source_kernels=(7, 7, 11),
        source_dilations=((1, 3, 5),) * 3,
        is_interpolated=True,
        **COMMON,
    ),
    22_050: HiftConfig(
        sample_rate_hz=22_050,
        strides=(8, 8),
        kernels=(16, 16),
        source_kernels=(7, 11),
        source_dilations=((1, 3, 5),) * 2,
        is_interpolated=False,
        **COMMON,
    ),
}


@pytest.fixture(scope="module")
def mel() -> torch.Tensor:
    return torch.randn(2, 12, N_FRAMES, generator=torch.Generator().manual_seed(11))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hift")


@pytest.fixture(scope="module")
def reference(folder, mel) -> dict[str, torch.Tensor]:
    inputs = {
        "mel": mel,
        "noise": noise_table(9),
        "phases": first_phases(9),
        "lengths": torch.tensor(LENGTHS),
    }
    return ask("hift_vocoder", folder, inputs, apart="cosyvoice")


@pytest.fixture(scope="module")
def models(folder, reference) -> dict[int, Hift]:
    return {
        rate_hz: make_hift(
            config, read_torch_file(folder / f"hift_{rate_hz}.pt"), source=f"hift_{rate_hz}.pt"
        )
        for rate_hz, config in CONFIGS.items()
    }


def fresh_state(model: Hift, n_rows: int) -> dict[str, torch.Tensor]:
    return {
        one.name: torch.zeros(n_rows, *one.shape, dtype=getattr(torch, one.dtype))
        for one in model.states
    }


def stream(model: Hift, mel: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """PCM `(B, n)`, in chunks of the given sizes, over and over; the last one is padded."""
    n_rows, n_mels, n_frames = mel.shape
    state, pcm, n_done, turn = fresh_state(model, n_rows), [], 0, 0
    while n_done < n_frames:
        size = sizes[turn % len(sizes)]
        piece = mel[:, :, n_done : n_done + size]
        n_valid = piece.shape[2]
        padded = torch.full((n_rows, n_mels, size), 3.0)
        padded[:, :, :n_valid] = piece
        n_done += n_valid
        is_last = torch.full((n_rows,), n_done == n_frames)
        decoded = model.decode(padded, torch.full((n_rows,), n_valid), state, is_last)
        state = decoded.state
        assert (decoded.n_samples == decoded.n_samples[0]).all()
        pcm.append(decoded.pcm[:, : decoded.n_samples[0]])
        turn += 1
    return torch.cat(pcm, dim=1)


@pytest.mark.parametrize("rate_hz", CONFIGS)
@pytest.mark.parametrize("n_frames", LENGTHS)
def test_one_chunk_is_the_reference_s_sound(models, mel, reference, rate_hz, n_frames):
    pitch = reference[f"f0_{rate_hz}_{N_FRAMES}"]
    assert (pitch < 10).any(), "some frames have no voice"
    assert 100 < pitch.median() < 400
    expected = reference[f"pcm_{rate_hz}_{n_frames}"]
    pcm = stream(models[rate_hz], mel[:, :, :n_frames], [n_frames])
    assert expected.shape == (2, n_frames * CONFIGS[rate_hz].samples_per_frame)
    assert 0.03 < expected.std() < 0.5
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rate_hz", CONFIGS)
@pytest.mark.parametrize("sizes", [[1], [25], [50, 10], [7, 3], [30, 1]])
def test_chunks_are_the_reference_s_sound(models, mel, reference, rate_hz, sizes):
    """Source, phase and noise go on over every join: no seam is to be heard."""
    pcm = stream(models[rate_hz], mel, sizes)
    expected = reference[f"pcm_{rate_hz}_{N_FRAMES}"]
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("rate_hz", CONFIGS)
def test_short_utterances_in_small_chunks(models, mel, reference, rate_hz):
    for n_frames in LENGTHS[:-1]:
        pcm = stream(models[rate_hz], mel[:, :, :n_frames], [2])
        expected = reference[f"pcm_{rate_hz}_{n_frames}"]
        torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_the_last_call_may_bring_no_frame(models, mel, reference):
    model = models[24_000]
    state = fresh_state(model, 1)
    first = model.decode(mel[:1], torch.tensor([N_FRAMES]), state, torch.tensor([False]))
    assert first.n_samples.tolist() == [(N_FRAMES - model.config.reach) * 480]
    rest = model.decode(mel[:1, :, :4], torch.tensor([0]), first.state, torch.tensor([True]))
    pcm = torch.cat([one.pcm[0, : one.n_samples[0]] for one in (first, rest)])
    expected = reference[f"pcm_24000_{N_FRAMES}"][0]
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_rows_of_a_batch_may_be_at_different_times(models, mel, reference):
    """A stream that begins later starts from zeros, whatever its slot held before."""
    model = models[24_000]
    early = model.decode(
        mel[:1, :, :30], torch.tensor([30]), fresh_state(model, 1), torch.tensor([False])
    )
    state = {
        name: torch.cat([tensor, torch.zeros_like(tensor)]) for name, tensor in early.state.items()
    }
    pieces = torch.stack([mel[0, :, 30:], mel[1, :, :40]])
    both = model.decode(pieces, torch.tensor([40, 40]), state, torch.tensor([True, False]))
    ended = torch.cat([early.pcm[0, : early.n_samples[0]], both.pcm[0, : both.n_samples[0]]])
    expected = reference[f"pcm_24000_{N_FRAMES}"]
    torch.testing.assert_close(ended, expected[0], atol=TOLERANCE, rtol=0)
    n_given = both.n_samples[1]
    assert n_given == (40 - model.config.reach) * 480
    torch.testing.assert_close(both.pcm[1, :n_given], expected[1, :n_given], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("rate_hz", "reach"), [(24_000, 21), (22_050, 19)])
def test_the_reach_is_real(models, mel, rate_hz, reach):
    """A frame changes the audio within the reach (and the phase of what follows), none before."""
    model = models[rate_hz]
    changed = mel[:1].clone()
    changed[0, :, 40] += 1.0
    before = stream(model, mel[:1], [N_FRAMES])[0]
    differs = stream(model, changed, [N_FRAMES])[0] != before
    touched = differs.view(N_FRAMES, -1).any(dim=1).nonzero().flatten()
    assert model.config.reach == reach
    # What reaches furthest, through the outermost tap of every layer, is lost in rounding.
    assert 40 - reach <= touched.min() <= 40 - reach + 2, "a weaker reach would do"


def hasty(folder, n_ahead: int) -> Hift:
    model = make_hift(CONFIGS[24_000], read_torch_file(folder / "hift_24000.pt"), source="hift")
    model.look_ahead(n_ahead)
    return model


@pytest.mark.parametrize(("n_ahead", "most_db"), [(8, -35), (12, -60), (16, -80)])
def test_frames_far_ahead_are_hardly_heard(folder, models, mel, n_ahead, most_db):
    """Of 21 that the network reaches. Chunks of 10 frames: all audio is near a border."""
    exact = stream(models[24_000], mel, [10])
    pcm = stream(hasty(folder, n_ahead), mel, [10])
    error_db = 20 * torch.log10((pcm - exact).std() / exact.std())
    assert error_db < most_db
    assert not torch.equal(pcm, exact)


@pytest.mark.parametrize("kind", ["sweep", "random"])
def test_chunks_join_without_a_click(folder, models, kind):
    """At no border is there a step that whole decoding has not, with little look-ahead either."""
    bins, frames = torch.arange(12.0), torch.arange(100.0)
    sweep = 3 * (bins.unsqueeze(1) - 11 * frames / 100).square().mul(-0.5).exp()
    mel = (
        sweep
        if kind == "sweep"
        else torch.randn(12, 100, generator=torch.Generator().manual_seed(2))
    )
    whole = stream(models[24_000], mel.unsqueeze(0), [100])[0]
    pcm = stream(hasty(folder, 12), mel.unsqueeze(0), [25])[0]
    borders = (torch.arange(25, 100, 25) - 12) * 480
    steps, own = pcm.diff(), whole.diff()
    assert steps[borders - 1].abs().max() <= own.abs().max()
    assert (steps - own).abs().max() < 0.03 * whole.std()


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("generator.conv_pre.bias", None, "missing: conv_pre.bias"),
        ("generator.ups.0.bias", torch.zeros(3), "unfit: ups.0.bias"),
        ("generator.more.weight", torch.zeros(3), "unexpected: more.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, key, tensor, shown):
    held = read_torch_file(folder / "hift_24000.pt")
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    with pytest.raises(WeightError, match=shown):
        make_hift(CONFIGS[24_000], held, source="hift.pt")
