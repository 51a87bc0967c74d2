"""Row layout of the training sequences, and the losses against plain stepping."""

import numpy as np
import torch

from models.pico.training import lm, speak
from models.pico.training.common import ABSENT, ADVANCE_END, STAY_ENDED
from models.pico.training.nets import SpeechLM
from models.pico.training.speak import Settings

POINTER = np.array([0, 1, 1, 3])
STAY = np.array([0, 0, 1, 0])
CODES = np.array([[5, 50], [6, 60], [7, 70], [8, 80]])
PROMPT = np.array([1, 20, 21, 22, 2])


def small_model() -> SpeechLM:
    torch.manual_seed(0)
    return SpeechLM(vocab=30, n_books=2, width=32, n_layers=2, n_heads=2, ff=48).eval()


def test_columns_are_delayed_by_one_row_and_two() -> None:
    found = lm.sequence_of(PROMPT, POINTER, STAY, CODES)
    assert found.codes.tolist() == [
        [ABSENT, ABSENT], [5, ABSENT], [6, 50], [7, 60], [8, 70],
    ]  # fmt: skip
    assert found.targets.tolist() == [[5, -100], [6, 50], [7, 60], [8, 70], [-100, 80]]


def test_advance_targets_end_once_and_are_not_asked_for_after() -> None:
    found = lm.sequence_of(PROMPT, POINTER, STAY, CODES)
    assert found.advance.tolist() == [0, 1, 0, 2, ADVANCE_END, -100]
    assert found.stay.tolist() == [0, 0, 1, 0, STAY_ENDED]
    assert found.window[-1].tolist() == found.window[-2].tolist()


def test_loss_does_not_depend_on_batch_neighbours() -> None:
    model = small_model()
    short = lm.sequence_of(PROMPT, POINTER, STAY, CODES)
    long = lm.sequence_of(np.r_[PROMPT[:-1], 23, 24, 2], POINTER, STAY, CODES)
    alone = [lm.losses(model, [s]) for s in (short, long)]
    both = lm.losses(model, [short, long])
    # Both have four book targets each, so the mean of means is the mean; fp32 sums differ by 1e-6.
    for book in range(2):
        mean = (alone[0][1][book] + alone[1][1][book]) / 2
        assert abs(float((mean - both[1][book]).detach())) < 1e-5


def test_stepping_with_a_cache_gives_the_logits_of_the_whole_pass() -> None:
    model = small_model()
    settings = Settings(advance=1.0, codes=(1.0, 1.0), max_stay=4)
    takes = speak.generate(model, [PROMPT.tolist(), [1, 9, 2]], settings, seed=3)
    greedy = Settings(advance=0.0, codes=(0.0, 0.0), max_stay=4)
    for take in speak.generate(model, [PROMPT.tolist(), [1, 9, 2]], greedy, seed=0):
        row = lm.sequence_of(take.prompt, take.pointer, take.stay, take.codes)
        x = torch.cat([
            model.temb(torch.from_numpy(row.prompt)),
            model.audio_rows(*map(torch.from_numpy, (row.window, row.stay, row.codes))),
        ])[None]  # fmt: skip
        y = model(x)[0, len(take.prompt) :]
        for book in range(2):
            said = model.heads[book](y)[book : book + len(take.codes)].argmax(-1)
            assert said.tolist() == take.codes[:, book].tolist()
    assert all(take.pointer[-1] == len(take.prompt) - 2 for take in takes)
