"""Rules about the repository itself: what its documents say is so."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer.main

from realtime.cli import app

ROOT = Path(__file__).parent.parent
PACKAGES = ("realtime", "engine", "models", "loadtest")
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)
MAX_LINES = 400
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".js", ".css", ".html", ".yaml", ".json", ""}


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def shell_lines(document: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line]


def test_every_file_is_one_idea():
    long = {
        str(path.relative_to(ROOT)): n_lines
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES
        if (n_lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long


def test_every_command_in_the_readme_is_one():
    """`make` targets exist; `parley` commands parse, with every option that they name."""
    makefile = (ROOT / "Makefile").read_text()
    group = typer.main.get_command(app)
    n_checked = 0
    for line in shell_lines("README.md"):
        words = shlex.split(line.split("|")[-1])
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
        else:
            assert Path(words[0]).name == "parley", line
            command = group.commands[words[1]]
            command.make_context(words[1], words[2:])
        n_checked += 1
    assert n_checked >= 10


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_documents_name_exist(document):
    text = (ROOT / document).read_text()
    folders = "realtime|engine|models|web_demo|loadtest|tests|docs"
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*|[\w-]+\.(?:md|toml|txt))`", text))
    # Links, but not those that stand in code as examples of text.
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    named |= set(re.findall(r"\]\(((?!http)[^)#]+)\)", prose))
    here = (ROOT, (ROOT / document).parent)
    missing = [name for name in named if not any((place / name).exists() for place in here)]
    assert not set(missing) - {"models/pico/weights"}


def test_the_walk_names_real_code():
    """Each `file`: `Class.method` of the structure document stands in that file."""
    text = " ".join((ROOT / "docs/structure.md").read_text().split())
    pairs = re.findall(r"`([\w/]+\.(?:py|js))`: `([\w.]+)`", text)
    assert len(pairs) > 20
    for name, path in pairs:
        source = (ROOT / name).read_text()
        for part in path.split("."):
            assert re.search(rf"(?:class|def) {part}\b", source), f"{name} has no {path}"


def test_every_dependency_is_pinned():
    known = pins()
    wanted = [*project()["dependencies"]]
    for extra, names in project()["optional-dependencies"].items():
        wanted += names if extra != "cuda" else []
    for requirement in wanted:
        name = canonical(re.split(r"[<>=\[; ]", requirement)[0])
        assert name in known, f"{requirement} has no pin in constraints.txt"
        exact = re.search(r"==([\w.]+)", requirement)
        assert exact is None or exact[1] == known[name]


def test_the_torch_pin_names_no_build():
    assert re.fullmatch(r"[\d.]+", pins()["torch"])


def test_the_changelog_has_this_version():
    assert f"## {project()['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_names_this_machine_or_a_registry():
    host = re.compile(r"(?:pypi|pythonhosted|download\.pytorch|npmjs)\.(?:org|com)")
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES and path.name != Path(__file__).name:
            text = path.read_text(errors="ignore")
            assert not host.search(text), path
            assert "/work/" not in text, path


def test_large_files_are_only_the_weights():
    large = [path for path in tracked_files() if path.stat().st_size > 500_000]
    assert all("models/pico/weights" in str(path) for path in large), large
    total = sum(path.stat().st_size for path in large)
    assert total < 40_000_000


def test_the_script_that_decides_runs_the_documented_commands():
    script = (ROOT / ".ci/run").read_text()
    assert "set -euo pipefail" in script
    documented = set(shell_lines("README.md"))
    for command in ("make check", "make test"):
        assert command in script
        assert command in documented
