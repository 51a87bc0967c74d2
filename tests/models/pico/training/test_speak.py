"""Grammar and repeatability of generation."""

import numpy as np
import torch

from models.pico.training import speak
from models.pico.training.nets import SpeechLM
from models.pico.training.speak import Settings

SETTINGS = Settings(advance=1.0, codes=(1.0, 1.0), max_stay=3)


def model() -> SpeechLM:
    torch.manual_seed(1)
    return SpeechLM(vocab=30, n_books=2, width=32, n_layers=1, n_heads=2, ff=48).eval()


def test_end_is_allowed_at_the_last_unit_only() -> None:
    ptr, last = torch.tensor([0, 3, 5, 4]), torch.tensor([5, 5, 5, 5])
    stay = torch.tensor([0, 3, 3, 0])
    ok = speak.allowed_advances(ptr, stay, last, max_stay=3)
    assert ok.tolist() == [
        [True, True, True, True, False],
        [False, True, True, False, False],
        [False, False, False, False, True],
        [True, True, False, False, False],
    ]


def test_every_take_ends_and_never_holds_past_the_clamp() -> None:
    prompts = [[1, *range(5, 5 + n), 2] for n in (1, 2, 9)]
    for take in speak.generate(model(), prompts, SETTINGS, seed=4):
        assert take.pointer[-1] == len(take.prompt) - 2
        assert (np.diff(take.pointer) >= 0).all()
        assert take.stay.max() <= SETTINGS.max_stay
        assert take.codes.shape == (len(take.pointer), 2)
        assert take.codes.max() < 1024


def test_one_seed_repeats_and_two_differ() -> None:
    prompts = [[1, 5, 6, 7, 8, 9, 2]]
    takes = [speak.generate(model(), prompts, SETTINGS, seed=s)[0] for s in (1, 1, 2)]
    assert np.array_equal(takes[0].codes, takes[1].codes)
    assert not np.array_equal(takes[0].codes, takes[2].codes)


def test_a_forced_alignment_is_followed() -> None:
    wanted = np.array([0, 1, 2, 2, 3])
    take = speak.generate(model(), [[1, 5, 6, 7, 2]], SETTINGS, 0, forced_pointers=[wanted])[0]
    assert take.pointer.tolist() == wanted.tolist()
