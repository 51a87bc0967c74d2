"""Bad and hard input with the outcome that every lane must give."""

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def text_cases() -> dict[str, dict[str, Any]]:
    """Texts by case; `input` is a string, or a list of the pieces in which it is sent."""
    cases = _lines("texts.jsonl")
    for case in cases.values():
        text = case["input"]
        if isinstance(text, dict):
            n_characters = text["n_characters"]
            case["input"] = (text["repeat"] * n_characters)[:n_characters]
    return cases


def wire_cases() -> dict[str, dict[str, Any]]:
    """Messages and frames by case."""
    return _lines("wire.jsonl")


def _lines(name: str) -> dict[str, dict[str, Any]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return {line["case"]: line for line in map(json.loads, lines)}
