"""Whether a turn is over: by tables of words, and of words together with what the judge hears."""

import pytest

from realtime.conversation.endings import ending_of, finality, says_nothing

WHOLE = [
    "What colour is the sky?",
    "Why?",
    "Who won?",
    "When does the shop open?",
    "Is it raining?",
    "Where are you from?",
    "What are you looking for?",
    "What is it like?",
    "Sing a song",
    "The train is late.",
    "Okay",
    "No.",
    "I think so.",
    "Yes, I can.",
    "I love her.",
    "It's his.",
    "What is 2 plus 2?",
    "My number is 555.",
    "Das ist alles.",
]
BROKEN = [
    "What is the?",
    "Please turn the...",
    "So I went to the store and",
    "I was wondering if.",
    "Because the",
    "Um.",
    "Can you tell me, um?",
    "Well\u2026",
    "I'd like a coffee, a tea,",
    "And I'm",
    "And I\u2019m",
    "I wanted to ask you \u2014",
]
OPEN = ["I would like to book a flight to", "Tomorrow I want to go with.", "My name is", "I would"]
NOTHING = ["", " ", "...", "\u2014"]

ENDINGS = [
    *((text, "whole") for text in WHOLE),
    *((text, "broken") for text in BROKEN),
    *((text, "open") for text in OPEN),
    *((text, "nothing") for text in NOTHING),
]


@pytest.mark.parametrize(("text", "expected"), ENDINGS)
def test_how_words_end(text, expected):
    assert ending_of(text, None) == expected
    assert ending_of(text, "en-GB") == expected


@pytest.mark.parametrize("text", ["", "...", "Hm.", "Um, uh.", "Hmm?", "Mm.", "Ah!"])
def test_a_mere_sound_says_nothing(text):
    assert says_nothing(text)


@pytest.mark.parametrize("text", ["Uh-huh.", "Mm-hmm.", "Um, why?", "No.", "Oh."])
def test_but_a_word_does(text):
    assert not says_nothing(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("Ruf mich an.", "whole"), ("Ich gehe in", "whole"), ("Und", "whole")]
)
def test_of_other_languages_only_the_marks_are_known(text, expected):
    assert ending_of(text, "de") == expected
    assert ending_of(f"{text[:-1]}...", "de") == "broken"


@pytest.mark.parametrize(
    ("completeness", "ending", "expected"),
    [
        # Both agree.
        (0.9, "whole", "finished"),
        (0.1, "broken", "unfinished"),
        # A short question that the judge takes for unfinished does not wait two seconds.
        (0.02, "whole", "undecided"),
        # "So I went to the store and": no melody makes that a sentence.
        (0.99, "broken", "unfinished"),
        # Words that say nothing leave it to the judge.
        (0.5, "open", "finished"),
        (0.49, "open", "unfinished"),
        # Nobody said anything: there is nothing to wait for.
        (0.1, "nothing", "finished"),
        # The words are still to come: only patience is sure.
        (0.9, None, "undecided"),
        (0.1, None, "unfinished"),
        # No judge.
        (None, "whole", "undecided"),
        (None, "open", "undecided"),
        (None, "broken", "unfinished"),
        (None, "nothing", "finished"),
        (None, None, "undecided"),
    ],
)
def test_judge_and_words_together(completeness, ending, expected):
    assert finality(completeness, ending) == expected
