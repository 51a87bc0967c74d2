"""What docs/loadtest.md says is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from loadtest.__main__ import app
from loadtest.client_health import MAX_BUSY_PCT, MAX_LAG_P99_MS
from loadtest.measure.audible import AUDIBLE_DBFS, WINDOW_MS
from loadtest.measure.flatness import Slack
from loadtest.measure.promise import Promise
from loadtest.traffic.recordings import INTERRUPTIONS, QUESTIONS
from loadtest.traffic.scenarios import PARTS, SCENARIOS, Scenario
from loadtest.traffic.texts import texts

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/loadtest.md").read_text()


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("python -m loadtest ")]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_one(words):
    group = typer.main.get_command(app)
    group.commands[words[3]].make_context(words[3], words[4:])


def test_every_command_is_documented():
    known = set(typer.main.get_command(app).commands)
    assert known - {words[3] for words in commands()} <= {"simulate"}  # it loads no server


def test_the_table_of_parts_is_the_scenarios_own():
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|$", TEXT, re.MULTILINE)
    assert [row[0] for row in rows] == list(PARTS)
    for part, *cells in rows:
        for name, cell in zip(("speech", "conversation", "mixed"), cells, strict=True):
            share = SCENARIOS[name].get(part, 0.0)
            assert cell.strip() == (f"{share:.0%}".replace("%", " %") if share else ""), (
                part,
                name,
            )


def test_numbers_in_words_are_those_in_force():
    quick = Scenario(name="x", shares={"whole": 1.0})
    words = " ".join(TEXT.split())
    for said in (
        f"window of {WINDOW_MS} ms whose energy reaches {AUDIBLE_DBFS:g} dBFS",
        f"More than {MAX_LAG_P99_MS:g} ms (one packet) at p99 of any of the three",
        f"more than {MAX_BUSY_PCT:g} % of a core",
        f"after {quick.heard_s[0]:g} to {quick.heard_s[1]:g} s of sound",
        f"exponential with a mean of {quick.think_s:g} s",
        f"p{Promise().percent} of the first audible sample within {Promise().ttfa_ms:g} ms",
        f"{Promise().clean_pct:g} % of streams without an underrun",
        f"{Promise().served_pct:g} % served",
        f"no more than {Slack().rss_pct:g} % or {Slack().rss_mb:g} MB",
        f"threads by no more than {Slack().count:g} or 20 %",
    ):
        assert said in words, said
    assert len(texts()) == 40
    lengths = [len(text.split()) for text in texts()]
    assert f"({min(lengths)} to {max(lengths)} words)" in TEXT
    assert (len(QUESTIONS), len(INTERRUPTIONS)) == (8, 3)
    assert "eight questions and three interruptions" in words
