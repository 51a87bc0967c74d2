"""Checkpoints of the hub, `org/name` or `org/name@revision`: fetched only because a user named one.

Knows no family: `Needs` says what one reads. Configs come first and tell the family; weights
follow, and only those that its loader reads. The files stay in the cache that the hub's library
keeps; the loader is given a folder of links into it, in which what comes from several repositories
stands together. Nothing of a repository is run.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from models.errors import WeightError
from models.hub_library import (
    HubError,
    HubName,
    Revision,
    check_room,
    fetch_file,
    links_folder,
    look_up,
    not_cached,
)

__all__ = ["HubError", "HubName", "Needs", "Part", "Wanted", "Watch", "fetch", "hub_name"]

SAFETENSORS: Final = "model.safetensors"
TEXT_SUFFIXES: Final = frozenset({".json", ".txt", ".yaml", ".yml", ".model"})
"""Of configs and tokenizers."""
MAX_TEXT_BYTES: Final = 64_000_000
"""The largest tokenizer of a known family has 33 MB."""
WEIGHT_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx"})
"""Read as tensors alone (`models.checkpoint`), or as a graph of ONNX's operators; what can hold
code is not fetched."""
_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A folder within the model's that holds a checkpoint of its own, such as the detokenizer's.

    Args:
        folder: within the model's.
        repository: that it comes from, where the model's own has no such folder.
        within: the folder of that repository; empty: all of it.
        weights: the files of them, as in `Needs`; none: configs and tokenizer alone.
    """

    folder: str
    repository: str | None = None
    within: str = ""
    weights: tuple[str, ...] = (SAFETENSORS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a family reads of a repository, beside configs and tokenizers.

    Args:
        weights: the files of them; in place of `model.safetensors` the shards of its index, or of
            the index that `config.json` names, where there is one.
        parts: folders within.
    """

    weights: tuple[str, ...] = (SAFETENSORS,)
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a repository gives; `n_missing_bytes` of `n_bytes` are not in the cache yet.

    `licence` is what its card states, empty if it does not.
    """

    repository: str
    licence: str
    n_bytes: int
    n_missing_bytes: int


class Watch(Protocol):
    """Who looks on."""

    def found(self, wanted: Sequence[Wanted]) -> None:
        """All repositories are known, and no weights have been fetched."""
        ...

    def fetched(self, n_bytes: int) -> None:
        """So much more has come; less than nothing where something has to come again."""
        ...


def hub_name(model: str) -> HubName | None:
    """The repository that a user means; None for what is a folder here, or no such name."""
    named = _NAME.fullmatch(model)
    if named is None or Path(model).exists():
        return None
    return HubName(repository=named[1], revision=named[2])


def fetch(name: HubName, needs: Callable[[Path], Needs], watch: Watch) -> Path:
    """The folder of a checkpoint, whole on this machine.

    Args:
        name: of the repository.
        needs: what the family reads that a folder of configs belongs to; raises `WeightError` where
            it belongs to none.
        watch: is told.

    Raises:
        HubError: there is no such repository or revision, it is closed to this user, cannot be
            reached, has no known family or not its files, or does not fit on the disk.
    """
    main = look_up(name)
    _fetch_texts(main, "")
    wanted = _asked(main, needs)
    pieces = [_piece(main, "", wanted.weights, "")]
    for part in wanted.parts:
        source, prefix = _source_of(part, main)
        _fetch_texts(source, prefix)
        pieces.append(_piece(source, prefix, part.weights, f"{part.folder}/"))
    summary = _summary(pieces)
    watch.found(summary)
    check_room(sum(one.n_missing_bytes for one in summary), name.repository)
    for piece in pieces:
        for file in piece.files:
            fetch_file(piece.source, file, watch.fetched)
    return _link(main, pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Files of a repository; `prefix` of their names becomes `place` in the model's folder."""

    source: Revision
    files: list[str]
    prefix: str
    place: str


def _asked(main: Revision, needs: Callable[[Path], Needs]) -> Needs:
    """What the family of a repository reads. Raises: `HubError`: no family is known by its texts.

    The folder that is asked about has the texts, and the names of weights: their files are empty.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for file in _texts(main, ""):
            (folder / file).symlink_to(main.snapshot / file)
        for file in main.sizes:
            if PurePosixPath(file).suffix in WEIGHT_SUFFIXES and "/" not in file:
                (folder / file).touch()
        try:
            return needs(folder)
        except WeightError as error:
            if main.is_cached:
                raise not_cached(main.repository) from error
            raise HubError(str(error).replace(made, main.repository)) from error


def _source_of(part: Part, main: Revision) -> tuple[Revision, str]:
    """The repository of a part, and where in it the part stands. Raises: `HubError`."""
    prefix = f"{part.folder}/"
    if any(file.startswith(prefix) for file in main.sizes):
        return main, prefix
    if part.repository is None:
        raise HubError(f"{main.repository} has no {part.folder}, which its family reads")
    return look_up(HubName(repository=part.repository)), part.within and f"{part.within}/"


def _texts(source: Revision, prefix: str) -> list[str]:
    """Configs and tokenizers right in the folder `prefix`."""
    return sorted(
        file
        for file, n_bytes in source.sizes.items()
        if file.startswith(prefix) and "/" not in file.removeprefix(prefix)
        if PurePosixPath(file).suffix in TEXT_SUFFIXES and n_bytes <= MAX_TEXT_BYTES
    )


def _fetch_texts(source: Revision, prefix: str) -> None:
    """They are small: nobody is told."""
    for file in _texts(source, prefix):
        fetch_file(source, file, lambda n_bytes: None)


def _piece(source: Revision, prefix: str, weights: Sequence[str], place: str) -> _Piece:
    """What is read of a folder whose texts are here. Raises: `HubError`: weights are missing."""
    files = _texts(source, prefix)
    for name in _shards(source.snapshot / prefix, weights):
        file = prefix + name
        is_readable = PurePosixPath(name).suffix in WEIGHT_SUFFIXES and "/" not in name
        if source.is_cached and file not in source.sizes:
            raise not_cached(source.repository)
        if not is_readable or file not in source.sizes:
            raise HubError(f"{source.repository} has no {file}: no weights that are read here")
        files.append(file)
    return _Piece(source=source, files=files, prefix=prefix, place=place)


def _shards(folder: Path, weights: Sequence[str]) -> list[str]:
    """The files of the weights, in place of `SAFETENSORS` those that an index names."""
    if SAFETENSORS not in weights:
        return list(weights)
    index = f"{SAFETENSORS}.index.json"
    with suppress(OSError, ValueError, AttributeError):
        index = json.loads((folder / "config.json").read_text()).get("transformers_weights", index)
    try:
        places = json.loads((folder / str(index)).read_text())["weight_map"]
        shards = sorted({str(file) for file in places.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # No index, or none that a loader could read either.
        return list(weights)
    return [*shards, *(name for name in weights if name != SAFETENSORS)]


def _summary(pieces: Sequence[_Piece]) -> list[Wanted]:
    """One entry for each repository."""
    files: dict[str, set[str]] = {}
    sources = {piece.source.repository: piece.source for piece in pieces}
    for piece in pieces:
        files.setdefault(piece.source.repository, set()).update(piece.files)
    return [
        Wanted(
            repository=name,
            licence=source.licence,
            n_bytes=sum(source.sizes[file] for file in files[name]),
            n_missing_bytes=sum(
                source.sizes[file] for file in files[name] if not (source.snapshot / file).exists()
            ),
        )
        for name, source in sources.items()
    ]


def _link(main: Revision, pieces: Sequence[_Piece]) -> Path:
    """The folder of links that the loader reads, made anew: the cache may have been cleaned."""
    parent = links_folder(main.repository)
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=parent))
    for piece in pieces:
        for file in piece.files:
            link = made / (piece.place + file.removeprefix(piece.prefix))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(piece.source.snapshot / file)
    folder = parent / main.commit
    # NOTE: another process may do the same: whichever folder stands at the end, it is whole.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        made.rename(folder)
    except OSError as error:
        shutil.rmtree(made)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    return folder
