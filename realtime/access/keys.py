"""API keys: where they come from, how they look, and whether one is ours. Event loop thread.

Only digests are kept, so that no key can get into a log, a message or a dump of a setting.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from realtime.errors import ConfigError

SECRET_PREFIX: Final = "ek_"
"""How client secrets begin; no key of the operator's may."""
MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 256
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110, 5.6.2: what a browser may offer as a subprotocol."""
_ADVICE: Final = "make one with: openssl rand -hex 32"

logger = logging.getLogger(__name__)


class KeyRing:
    """The keys that open this server.

    Args:
        keys: as `read_key_file` and `keys_in` give them.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(dict.fromkeys(_digest(key.encode()) for key in keys))

    def __len__(self) -> int:
        """How many; without any, everybody may come in."""
        return len(self._digests)

    def __repr__(self) -> str:
        """Nothing of the keys."""
        return f"<{len(self)} keys>"

    def id_of(self, key: bytes) -> str | None:
        """A name for this key in logs and counts; None: it is not ours.

        The time taken tells nothing: digests have one length, and all of them are compared.
        """
        digest = _digest(key)
        found = None
        for one in self._digests:
            if hmac.compare_digest(one, digest):
                found = one
        return None if found is None else f"key_{found.hex()[:8]}"


def read_key_file(path: Path) -> list[str]:
    """The keys of a file: one a line; blank lines and what follows a `#` after white space is not.

    Raises:
        ConfigError: it cannot be read, holds no key, or a line is none (named by its number).
    """
    try:
        text = path.read_text(encoding="utf-8")
        is_readable_by_all = bool(path.stat().st_mode & stat.S_IROTH)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"API keys cannot be read from {path}: {reason}") from None
    if is_readable_by_all:
        logger.warning("every user of this machine can read %s; try: chmod 600 %s", path, path)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    keys = [_checked(line, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line]
    if not keys:
        raise ConfigError(f"{path} holds no API key; {_ADVICE}")
    return keys


def keys_in(text: str, name: str) -> Sequence[str]:
    """The keys of an environment variable: separated by commas or white space.

    Args:
        text: its value.
        name: of it, for messages.

    Raises:
        ConfigError: one of them cannot be a key (named by its place).
    """
    words = [word for word in re.split(r"[,\s]+", text) if word]
    return [_checked(word, f"{name}, key {n}") for n, word in enumerate(words, 1)]


def _checked(key: str, where: str) -> str:
    """`key`, if it can be one. The message must not repeat it."""
    if not MIN_CHARACTERS <= len(key) <= MAX_CHARACTERS:
        wanted = f"{MIN_CHARACTERS} to {MAX_CHARACTERS}"
        raise ConfigError(f"{where}: a key has {wanted} characters, not {len(key)}; {_ADVICE}")
    if not _TOKEN.fullmatch(key):
        wanted = "ASCII letters, digits and !#$%&'*+.^_`|~-"
        raise ConfigError(f"{where}: browsers can send keys of {wanted} only; {_ADVICE}")
    if key.startswith(SECRET_PREFIX):
        raise ConfigError(f"{where}: {SECRET_PREFIX} is how short-lived keys begin; {_ADVICE}")
    return key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
