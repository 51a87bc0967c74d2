"""Every fault of docs/faults.md names tests, and all of them exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "docs" / "faults.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def rows() -> list[list[str]]:
    lines = TABLE.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if row[0] != "fault" and set(row[0]) != {"-"}]


def test_every_fault_names_tests_that_exist():
    assert len(rows()) > 20
    for fault, _, tests in rows():
        named = NAMED.findall(tests)
        assert named, f"{fault}: no test"
        assert len(named) == tests.count("`") // 2, f"{fault}: not all are file::test"
        for path, test in named:
            assert test in names_in(path), f"{fault}: {path} has no {test}"
