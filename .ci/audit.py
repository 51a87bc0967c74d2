"""Known vulnerabilities of the pinned packages, by pip-audit in an environment of its own.

    python .ci/audit.py constraints.txt

Exit code 1: there is one that `.ci/audit-exceptions.txt` does not explain. pip-audit ends with 0 as
well when it could look nothing up; here that is said in words that nobody takes for "clean".
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600


def verdict(report: Mapping[str, Any], exceptions: Mapping[str, str]) -> tuple[int, list[str]]:
    """Exit code and lines for a report of `pip-audit --format json`.

    Args:
        report: as it was read.
        exceptions: reason by the id of a vulnerability that is lived with.
    """
    looked_up = [one for one in report["dependencies"] if "skip_reason" not in one]
    skipped = [one["name"] for one in report["dependencies"] if "skip_reason" in one]
    lines, is_clean = [], True
    for package in looked_up:
        for found in package["vulns"]:
            ids = [found["id"], *found.get("aliases", [])]
            reason = next((exceptions[one] for one in ids if one in exceptions), None)
            fixed = ", ".join(found.get("fix_versions", [])) or "no release"
            word = f"accepted: {reason}" if reason else f"fixed in {fixed}"
            lines.append(f"{package['name']} {package['version']}: {found['id']}, {word}")
            is_clean = is_clean and reason is not None
    if not looked_up:
        return 0, ["SKIPPED the audit: the index here tells of no vulnerabilities"]
    if skipped:
        lines.append(f"not looked up: {', '.join(sorted(skipped))}")
    lines.append(f"{len(looked_up)} packages looked up: {'clean' if is_clean else 'NOT clean'}")
    return (0 if is_clean else 1), lines


def read_exceptions(text: str) -> dict[str, str]:
    """Lines of an id and its reason; blank lines and comments are not."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return {name: reason.strip() for name, _, reason in pairs if reason.strip()}


def main(requirements: str) -> int:
    """Install pip-audit, ask it, and say what it found."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "pip-audit"]
        if subprocess.run(install, timeout=TIMEOUT_S, check=False).returncode:
            sys.stdout.write("SKIPPED the audit: pip-audit cannot be installed (see above)\n")
            return 0
        ask = [python, "-m", "pip_audit", "-r", requirements, "--no-deps", "--disable-pip"]
        ask += ["--format", "json", "--progress-spinner", "off"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    try:
        report = json.loads(answer.stdout)
    except ValueError:
        last = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        sys.stdout.write(f"SKIPPED the audit: {last}\n")
        return 0
    exceptions = read_exceptions((HERE / "audit-exceptions.txt").read_text())
    code, lines = verdict(report, exceptions)
    sys.stdout.write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
