"""How long a text may sound: longer than anybody reads it, and never without end."""

import pytest

from realtime.speech.segments import LEAST_BUDGET_S, speech_budget_s
from realtime.speech.speaker import GUESSED_S_PER_CHARACTER


@pytest.mark.parametrize(
    ("text", "read_s"),
    [
        ("x", 1.0),
        ("and then we went on " * 12, 240 * 0.1),
        ("1234567890 " * 4, 40 * 0.5),
        ("WWW NASA USA FBI CIA UK", 19 * 0.6),
        ("\u4f60\u597d\u4e16\u754c" * 20, 80 * 0.4),
    ],
)
def test_the_budget_holds_the_slowest_reader_and_not_much_more(text: str, read_s: float) -> None:
    assert read_s < speech_budget_s(text, 1.0) < LEAST_BUDGET_S + 3 * read_s


def test_slow_speech_has_more_of_it_and_fast_speech_no_less() -> None:
    assert speech_budget_s("Hello there.", 0.5) == 2 * speech_budget_s("Hello there.", 1.0)
    assert speech_budget_s("Hello there.", 2.0) == speech_budget_s("Hello there.", 1.0)


def test_usual_speech_is_far_from_it() -> None:
    text = "This is a sentence of usual length, as people speak it."
    assert speech_budget_s(text, 1.0) > 2 * GUESSED_S_PER_CHARACTER * len(text)
