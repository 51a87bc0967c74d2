# ruff: noqa: RUF001 -- marks and scripts are input here
"""Text of Chatterbox: what punctuation becomes, languages, Chinese by Cangjie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from models.chatterbox.text import TextReader, punctuated, read_cangjie
from models.errors import PlanError, WeightError
from tests.models.chatterbox.tiny import make_tokenizer

LANGUAGES = ("en", "de", "ja", "ko", "zh")
CANGJIE = ["日\ta", "曰\ta", "明\tab", "鮮\tnfqj"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("text") / "tokenizer.json"
    letters = [f"[cj_{letter}]" for letter in "abfjnq1."]
    make_tokenizer(path, *(f"[{one}]" for one in LANGUAGES), *letters)
    return Tokenizer.from_file(str(path))


@pytest.fixture
def cangjie(tmp_path) -> dict[str, str]:
    path = tmp_path / "Cangjie5_TC.json"
    path.write_text(json.dumps(CANGJIE))
    return read_cangjie(path)


def shown(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.id_to_token(idx) for idx in ids[1:-1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "Hello."),
        ("  hello   there ", "hello there."),
        ("Why?", "Why?"),
        ("well... so", "Well,  so."),
        ("a: b; c", "A, b,  c."),
        ("one - two — three – four", "One, two - three - four."),
        ("he said “yes” , ‘no’ and it’s", "He said \"yes\", 'no' and it's."),
        ("wait…", "Wait,"),
        ("好。", "好。"),
        ("éa", "Éa."),
    ],
)
def test_marks_become_those_that_the_model_knows(text, said):
    """The right side is what the reference's `punc_norm` gives."""
    assert punctuated(text) == said


def test_english_keeps_its_capitals_and_has_no_language(tokenizer):
    ids = TextReader(tokenizer, source="-").ids("Hi, you", "en")
    assert ids[0] == 255
    assert ids[-1] == 0
    assert shown(tokenizer, ids) == [*"Hi,", "[SPACE]", *"you."]


def test_other_languages_stand_in_brackets_and_are_written_small(tokenizer, cangjie):
    reader = TextReader(tokenizer, LANGUAGES, cangjie, source="-")
    assert shown(tokenizer, reader.ids("Ja", "de")) == ["[de]", "j", "a", "."]


def test_chinese_is_spelled_and_homonyms_are_numbered(tokenizer, cangjie):
    assert cangjie["日"] == "[cj_a][cj_.]"
    assert cangjie["曰"] == "[cj_a][cj_1][cj_.]"
    reader = TextReader(tokenizer, LANGUAGES, cangjie, source="-")
    spelled = shown(tokenizer, reader.ids("曰明", "zh"))
    assert spelled == [
        "[zh]",
        *(f"[cj_{letter}]" for letter in ("a", "1", ".", "a", "b", ".")),
        ".",
    ]


def test_kanji_are_refused_where_only_kana_are_read(tokenizer, cangjie):
    reader = TextReader(tokenizer, LANGUAGES, cangjie, source="-")
    assert reader.ids("かな", "ja")[1] == tokenizer.token_to_id("[ja]")
    with pytest.raises(PlanError, match="hiragana") as caught:
        reader.ids("漢字", "ja")
    assert caught.value.code == "unsupported_characters"


def test_a_tokenizer_without_the_marks_is_of_something_else(tokenizer):
    with pytest.raises(WeightError, match=r"tokenizer\.json has no token \[xx\]"):
        TextReader(tokenizer, ("en", "xx"), source="tokenizer.json")


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]", '["no tab"]'])
def test_a_damaged_list_of_characters_is_named(tmp_path: Path, content):
    path = tmp_path / "Cangjie5_TC.json"
    path.write_text(content)
    with pytest.raises(WeightError, match=r"Cangjie5_TC\.json"):
        read_cangjie(path)
