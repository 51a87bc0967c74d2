"""What the audit says of a report: found, accepted, or not looked up at all."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit():
    spec = importlib.util.spec_from_file_location("audit", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
BAD = {"name": "bad", "version": "1.0", "vulns": [FOUND]}
GOOD = {"name": "good", "version": "1.0", "vulns": []}
SKIPPED = {"name": "own", "skip_reason": "not on the index"}


def test_a_vulnerability_fails_and_is_named_with_its_cure(audit):
    code, lines = audit.verdict({"dependencies": [GOOD, BAD]}, {})
    assert code == 1
    assert lines[0] == "bad 1.0: PYSEC-1, fixed in 2.0"


def test_one_that_is_explained_passes_with_the_reason(audit):
    exceptions = audit.read_exceptions("# why\n\nCVE-1 its server part is not used here\nCVE-2\n")
    assert exceptions == {"CVE-1": "its server part is not used here"}
    code, lines = audit.verdict({"dependencies": [GOOD, BAD]}, exceptions)
    assert code == 0
    assert "accepted: its server part" in lines[0]


def test_what_was_not_looked_up_is_not_called_clean(audit):
    assert audit.verdict({"dependencies": [SKIPPED]}, {})[1][0].startswith("SKIPPED")
    code, lines = audit.verdict({"dependencies": [GOOD, SKIPPED]}, {})
    assert code == 0
    assert lines == ["not looked up: own", "1 packages looked up: clean"]
