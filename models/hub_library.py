"""The hub through its own library, whose cache all programs share: look up, fetch, say what failed.

Nothing here runs unless a user named a repository. The library is imported then, and not before.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models.errors import ModelError

LOOKUP_S: Final = 15.0
"""How long the hub may take to say what a repository holds."""
LIBRARY: Final = "parley"
LOG_IN: Final = "log in with `hf auth login`, or set HF_TOKEN"


class HubError(ModelError):
    """A model of the hub cannot be had. The message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository; `revision` is a branch, a tag or a commit, None the default branch."""

    repository: str
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One commit of a repository.

    Args:
        repository: its name.
        commit: in full.
        licence: what its card states; empty if it does not, or nobody could be asked.
        sizes: bytes by file; only the files in the cache, where the hub is out of reach.
        snapshot: the folder of the cache that its files lie in, once they have come.
        is_cached: only the cache could be asked.
    """

    repository: str
    commit: str
    licence: str
    sizes: dict[str, int]
    snapshot: Path
    is_cached: bool = False


def look_up(name: HubName) -> Revision:
    """What a repository holds: as the hub says, or as the cache has it. Raises: `HubError`."""
    # The library's errors of the net are those of the client below it.
    from httpx2 import TransportError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(library_name=LIBRARY)
    found = None
    with _named_errors(name.repository, name.revision):
        try:
            found = api.model_info(
                name.repository, revision=name.revision, files_metadata=True, timeout=LOOKUP_S
            )
        except (TransportError, OfflineModeIsEnabled):
            pass
        except HfHubHTTPError as error:
            if error.response.status_code < 500:
                raise
        # It writes down what a branch stands for now, or reads that where nobody can be asked.
        resolved = api.resolve_revision(
            name.repository, revision=name.revision, local_files_only=found is None
        )
    if found is None:
        return _cached(name.repository, resolved.resolved)
    assert found.sha is not None, "the hub names the commit of every revision"
    return Revision(
        repository=name.repository,
        commit=found.sha,
        licence=str(getattr(found.card_data, "license", None) or ""),
        sizes={one.rfilename: one.size or 0 for one in found.siblings or ()},
        snapshot=_snapshot(name.repository, found.sha),
    )


def fetch_file(source: Revision, file: str, fetched: Callable[[int], None]) -> None:
    """Have a file in the cache. `fetched` is told of bytes that come. Raises: `HubError`."""
    from huggingface_hub import hf_hub_download

    with _named_errors(source.repository, source.commit):
        hf_hub_download(
            source.repository,
            file,
            revision=source.commit,
            library_name=LIBRARY,
            tqdm_class=_bar(fetched),
        )


def check_room(n_bytes: int, repository: str) -> None:
    """Raises: `HubError`: the disk of the cache is too small for so much more."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    n_free = shutil.disk_usage(existing).free
    if n_free < n_bytes:
        raise HubError(
            f"{repository} takes {n_bytes / 1e9:.1f} GB more and the disk of {cache} has "
            f"{n_free / 1e9:.1f} GB left: make room, or set HF_HOME to a larger disk"
        )


def links_folder(repository: str) -> Path:
    """Where folders of links into the cache lie: beside it, so that both go together."""
    from huggingface_hub import constants

    return Path(constants.HF_HOME) / LIBRARY / repository.replace("/", "--")


def not_cached(repository: str) -> HubError:
    """The fault of what is not here and cannot be asked for."""
    from huggingface_hub import constants

    reason = f"{constants.ENDPOINT} is out of reach"
    if constants.is_offline_mode():
        reason = "HF_HUB_OFFLINE forbids to ask for it"
    return HubError(f"{repository} is not whole in the cache, and {reason}")


def _cached(repository: str, commit: str) -> Revision:
    snapshot = _snapshot(repository, commit)
    files = [path for path in snapshot.rglob("*") if path.is_file()]
    if not files:
        raise not_cached(repository)
    return Revision(
        repository=repository,
        commit=commit,
        licence="",
        sizes={path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files},
        snapshot=snapshot,
        is_cached=True,
    )


def _snapshot(repository: str, commit: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = repo_folder_name(repo_id=repository, repo_type="model")
    return Path(constants.HF_HUB_CACHE).expanduser().resolve() / folder / "snapshots" / commit


def _bar(fetched: Callable[[int], None]) -> type[Any]:
    """What the library takes for its progress bar: it shows nothing, and passes the bytes on."""

    class Bar:
        def __init__(self, **options: object) -> None: ...

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *raised: object) -> None: ...

        def close(self) -> None: ...

        def update(self, n: float | None = 1) -> None:
            fetched(int(n or 0))

        def update_transfer(self, n: float | None = 1) -> None:
            """Bytes on the net; they count once they are on the disk."""

        def set_postfix_str(self, postfix: str, refresh: bool = False) -> None: ...

        def set_transfer_postfix_str(self, postfix: str, refresh: bool = False) -> None: ...

    return Bar


@contextmanager
def _named_errors(repository: str, revision: str | None) -> Iterator[None]:
    """What the library raises becomes a `HubError` that says what to do."""
    from httpx2 import TransportError
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    try:
        yield
    except errors.GatedRepoError as error:
        message = f"{repository} is gated: accept its terms at {hub}/{repository}, then {LOG_IN}"
        raise HubError(message) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repository} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        message = f"there is no folder {repository} here and no such repository at {hub}"
        raise HubError(f"{message}; if it is private, {LOG_IN}") from error
    except errors.RevisionResolutionError as error:
        raise not_cached(repository) from error
    except (errors.LocalEntryNotFoundError, TransportError) as error:
        raise not_cached(repository) from error
    except errors.HFValidationError as error:
        raise HubError(f"{repository} cannot be a repository's name") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            cache = constants.HF_HUB_CACHE
            raise HubError(f"the disk of {cache} is full: make room, or set HF_HOME") from error
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise HubError(f"{repository} cannot be fetched: {reason}") from error
