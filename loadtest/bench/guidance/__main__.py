"""Guided decoding: pairs in the engine, and two independent requests merged outside of it.

    python -m loadtest.bench.guidance full        prints one JSON list; `small` shows that it runs

A Bagpiper of 95 million parameters with random weights answers with text, and then with speech in
eight columns; without its detokenizer, which costs every way the same. Frames of each stream a
second, in steps of speech, which have 32 rows in every way, and over whole answers:

- `unguided`: 32 streams;
- `pairs`: 16 streams, each with its companion while it speaks (`pairs.py`);
- `apart`: 16 callers with two requests each (`apart.py`), which begin together;
- `apart, late`: the second request begins with the speech, and has its prompt for nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any, Final

import torch

from loadtest.bench.guidance.apart import Apart
from loadtest.bench.guidance.model import SIZES, Size, make_model
from loadtest.bench.guidance.pairs import Together

N_ROUNDS: Final = 3

Row = dict[str, Any]


def measure(size: Size) -> list[Row]:
    """Rates of the four ways, medians of rounds that measure them in turns."""
    torch.set_num_threads(1)
    model = make_model(size)
    together = Together(model, size)
    apart, late = (Apart(model, size, is_late=is_late) for is_late in (False, True))
    in_speech: dict[str, list[float]] = {"unguided": [], "pairs": []}
    of_answers: dict[str, list[float]] = {"pairs": [], "apart": [], "apart, late": []}
    for _ in range(N_ROUNDS):
        in_speech["unguided"].append(together.measure(is_guided=False).in_speech)
        pairs = together.measure(is_guided=True)
        in_speech["pairs"].append(pairs.in_speech)
        of_answers["pairs"].append(pairs.of_answers)
        of_answers["apart"].append(apart.frames_per_s())
        of_answers["apart, late"].append(late.frames_per_s())
    return [
        *_rows("steps of speech", "unguided", in_speech),
        *_rows("whole answers", "apart", of_answers),
    ]


def _rows(what: str, base: str, rates: dict[str, list[float]]) -> list[Row]:
    """A row for each way: its rate, and that over the rate of `base` in the same round."""
    return [
        {
            "what": what,
            "way": way,
            "frames_per_s": statistics.median(own),
            "over": base,
            "ratio": statistics.median(
                one / other for one, other in zip(own, rates[base], strict=True)
            ),
        }
        for way, own in rates.items()
    ]


if __name__ == "__main__":
    json.dump(measure(SIZES[sys.argv[1]]), sys.stdout)
