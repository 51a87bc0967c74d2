"""A small hub on the loopback interface: the parts of its API that its library uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "76543210fedcba9876543210fedcba9876543210"
OLD_FILE = "of_v1.txt"
"""Stands in the older commit of every repository, beside the files of the newer one."""


@dataclass
class Hub:
    """Repositories, each with its files; `gated` ones are closed; `asked` are the files given out.

    `licences` by repository; `revisions` are the two commits by their names; `is_down`: whatever is
    asked is answered by a fault of the hub's own.
    """

    repositories: Mapping[str, Mapping[str, bytes]]
    gated: frozenset[str] = frozenset()
    licences: Mapping[str, str] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(
        default_factory=lambda: {"main": COMMIT, "v1": OLDER, COMMIT: COMMIT, OLDER: OLDER}
    )
    is_down: bool = False
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def running_hub(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` until the end of the block; its `url` is set."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(self, hub)

        def do_HEAD(self) -> None:
            _answer(self, hub)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, hub: Hub) -> None:
    parts = [unquote(part) for part in urlsplit(handler.path).path.strip("/").split("/")]
    is_info = parts[:2] == ["api", "models"]
    if is_info:
        parts = parts[2:]
    repository = "/".join(parts[:2])
    revision = parts[3] if len(parts) > 3 else "main"
    files = hub.repositories.get(repository)
    if hub.is_down:
        _send(handler, 503, b"{}", {})
    elif files is None:
        _send(handler, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    elif revision not in hub.revisions:
        _send(handler, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    elif is_info:
        info = _info(hub, repository, hub.revisions[revision])
        _send(handler, 200, json.dumps(info).encode(), {})
    elif repository in hub.gated:
        # The hub lets everybody see what a gated repository holds, and nobody read it.
        _send(handler, 403, b"{}", {"X-Error-Code": "GatedRepo"})
    else:
        file = "/".join(parts[4:])
        if handler.command == "GET":
            hub.asked.append(f"{repository}/{file}")
        held = b"old" if file == OLD_FILE else files[file]
        tag = hashlib.sha256(held).hexdigest()
        commit = hub.revisions[revision]
        _send(handler, 200, held, {"X-Repo-Commit": commit, "ETag": f'"{tag}"'})


def _info(hub: Hub, repository: str, commit: str) -> dict[str, object]:
    sizes = {name: len(held) for name, held in hub.repositories[repository].items()}
    if commit == OLDER:
        sizes[OLD_FILE] = 3
    licence = hub.licences.get(repository)
    return {
        "id": repository,
        "sha": commit,
        "siblings": [{"rfilename": name, "size": n_bytes} for name, n_bytes in sizes.items()],
        "cardData": {"license": licence} if licence else {},
    }


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]
) -> None:
    handler.send_response(status)
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body)
