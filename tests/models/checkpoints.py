"""Small random checkpoints of the published families, made once and kept.

    python -m tests.models.checkpoints FOLDER      all of them, to be brought to another machine

Whoever writes `make_checkpoint(folder)`, or another `make_..._checkpoint`, in the `tiny.py` of a
family's tests has it listed here: nothing else names the families. What was made is kept under
`test-artifacts/` for as long as nothing that makes it has changed; it is to be read, not written.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "test-artifacts" / "checkpoints"
Maker = Callable[[Path], Path]


@cache
def makers() -> dict[str, Maker]:
    """Who makes a checkpoint, by its name: `csm`, `qwen3-tts`, `qwen3-tts-base`."""
    found: dict[str, Maker] = {}
    for path in sorted((ROOT / "tests" / "models").glob("*/tiny.py")):
        try:
            module = importlib.import_module(f"tests.models.{path.parent.name}.tiny")
        except ImportError as error:
            # A library is missing that makes it: whoever asks for this one is told.
            found[path.parent.name.replace("_", "-")] = _refusal(error)
            continue
        for name, call in inspect.getmembers(module, inspect.isfunction):
            is_maker = re.fullmatch(r"make_(?:(\w+)_)?checkpoint", name)
            if is_maker and call.__module__ == module.__name__:
                parts = [path.parent.name, is_maker[1] or ""]
                found["-".join(part for part in parts if part).replace("_", "-")] = call
    return found


def made(name: str) -> Path:
    """The folder of a checkpoint, made if there is none yet."""
    folder = KEPT / f"{name}.{_state_of(makers()[name].__module__)}"
    if folder.is_dir():
        return folder
    KEPT.mkdir(parents=True, exist_ok=True)
    for older in KEPT.glob(f"{name}.*"):
        shutil.rmtree(older, ignore_errors=True)
    place = tempfile.mkdtemp(dir=KEPT, prefix=".making-")
    try:
        makers()[name](Path(place))
        os.rename(place, folder)
    except OSError:
        # Another process may have been first.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _refusal(error: ImportError) -> Maker:
    def refuse(folder: Path) -> Path:
        raise error

    return refuse


@cache
def _state_of(module: str) -> str:
    """Changes with everything that a checkpoint is made by, libraries included."""
    sources = [
        *(ROOT / "tests" / "parity" / "oracles").glob("*.*"),
        ROOT.joinpath(*module.split(".")).with_suffix(".py"),
        ROOT / "constraints.txt",
    ]
    state = hashlib.sha256()
    for path in sorted(sources):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def main(folder: Path) -> None:
    """Put all of them into a folder."""
    for name in makers():
        shutil.copytree(made(name), folder / name, dirs_exist_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
