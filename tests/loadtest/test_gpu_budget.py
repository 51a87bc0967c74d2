"""Checks of a part: each in its own time, all of them told, and none left out without a reason."""

from __future__ import annotations

import json
import time

import pytest

from loadtest.gpu_check import random_models
from loadtest.gpu_check.__main__ import BUDGET_S, MODELS, parts_of
from loadtest.gpu_check.budget import LeftOut, check_all
from loadtest.gpu_check.where import SPARED_S, Where

CARD = Where(is_dry=False)


def right() -> dict:
    return {"error": 0.0, "is_right": True}


def told(capsys, checks, where: Where = CARD, **limits: float) -> tuple[dict, str]:
    """What was told, and what it ended with."""
    try:
        check_all(checks, where, **limits)
        ended = ""
    except SystemExit as error:
        ended = str(error)
    facts: dict = {}
    for line in capsys.readouterr().out.splitlines():
        facts |= json.loads(line.removeprefix("@"))
    return facts, ended


def test_all_that_is_asked_for_is_told_first(capsys):
    facts, ended = told(capsys, {"one": right, "other": right})
    assert facts["asked"] == ["one", "other"]
    assert facts["one"]["is_right"]
    assert ended == ""


def test_a_check_that_hangs_is_given_up_and_the_next_is_made(capsys):
    facts, ended = told(capsys, {"slow": lambda: time.sleep(60), "next": right}, each_s=0.2)
    assert "TimeoutError: not done in" in facts["slow"]["fault"]
    assert facts["next"]["is_right"]
    assert ended.endswith("not done: slow")


def test_a_check_that_raises_or_finds_a_fault_is_named_and_the_next_is_made(capsys):
    def broken() -> dict:
        raise ValueError("no such thing")

    checks = {"broken": broken, "wrong": lambda: {"is_right": False}, "next": right}
    facts, ended = told(capsys, checks)
    assert facts["broken"]["fault"] == "ValueError: no such thing"
    assert facts["next"]["is_right"]
    assert ended.endswith("not done: broken, wrong")


def test_what_cannot_be_checked_here_says_why_and_is_no_fault(capsys):
    def none_here() -> dict:
        raise LeftOut("no such library")

    facts, ended = told(capsys, {"one": none_here})
    assert facts["one"] == {"left_out": "no such library"}
    assert ended == ""


def test_what_there_is_no_time_for_is_told_and_is_a_fault(capsys):
    facts, ended = told(capsys, {"one": right}, Where(is_dry=False, budget_s=SPARED_S))
    assert facts["one"]["left_out"] == "the time of this part is over"
    assert ended.endswith("not done: one")


def test_models_that_are_measured_are_those_that_can_be_made():
    assert set(MODELS) == set(random_models.MODELS)


@pytest.mark.parametrize("is_dry", [False, True])
def test_all_parts_fit_six_minutes(is_dry):
    groups = parts_of(is_dry=is_dry)
    assert sum(max(part.budget_s for part in group) for group in groups) <= BUDGET_S < 360
