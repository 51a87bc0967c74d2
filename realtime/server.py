"""The server: one app on uvicorn, with a start that names its faults and a stop that drains.

`run` blocks until a signal; `Server` is the same in three steps for callers with their own loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable, Mapping

import uvicorn
import uvloop
from starlette.applications import Starlette

from engine.handle import EngineHandle
from realtime.access.tls import server_context
from realtime.app import make_app
from realtime.audio.opus import load_library
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.conversation.conversing import Conversing
from realtime.errors import ServerStartError
from realtime.gateway import Gateway
from realtime.sockets import SpeechHttpProtocol, SpeechSocketProtocol


def build_app(
    engines: Mapping[str, EngineHandle],
    config: GatewayConfig,
    relays: Mapping[str, EventRelay],
    converse: Callable[[Gateway], Conversing] | None = None,
) -> Starlette:
    """The ASGI app.

    Args:
        engines: doors of running engines by model name; the first is the default.
        config: of the gateway.
        relays: the sink that each engine was started with, by the same names.
        converse: makes what conversations need, of the gateway's bridges and workers; None: the
            server only speaks.
    """
    gateway = Gateway(engines, relays, config)
    return make_app(gateway, None if converse is None else converse(gateway))


class Server:
    """`startup`, `serve`, `shutdown`; all on one event loop.

    Args:
        app: of `build_app`.
    """

    def __init__(self, app: Starlette) -> None:
        gateway = app.state.gateway
        assert isinstance(gateway, Gateway), "build_app sets it"
        self.gateway = gateway
        self._uvicorn = _DrainingServer(_uvicorn_config(app, gateway.config), gateway)
        self._socket: socket.socket | None = None

    async def startup(self) -> int:
        """Listen. Returns the port.

        Raises:
            ConfigError: certificate or key cannot be used.
            OpusMissingError: no Opus library.
            ServerStartError: the address cannot be used.
        """
        load_library()
        tls = self.gateway.config.access.tls
        context = None if tls is None else server_context(tls)
        self._socket = _listen(self.gateway.config)
        _keep_handshakes_out_of_the_log()
        self._uvicorn.config.load()
        self._uvicorn.config.ssl = context
        self._uvicorn.lifespan = self._uvicorn.config.lifespan_class(self._uvicorn.config)
        await self._uvicorn.startup(sockets=[self._socket])
        port: int = self._socket.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._uvicorn.main_loop()

    def stop(self) -> None:
        """Make `serve` return; a second time: at once. Event loop thread."""
        if self._uvicorn.should_exit:
            self.gateway.cut_short()
        self._uvicorn.should_exit = True

    async def shutdown(self) -> None:
        """Drain, close every socket, release the port."""
        if self._socket is not None:
            await self._uvicorn.shutdown(sockets=[self._socket])


def run(
    app: Starlette,
    on_ready: Callable[[int], None] | None = None,
    on_stopping: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal. What is being spoken ends first, except after a second signal.

    Args:
        app: of `build_app`.
        on_ready: called with the port once connections are taken.
        on_stopping: called at the first signal, if something is being spoken.

    Raises:
        ConfigError: certificate or key cannot be used.
        OpusMissingError: no Opus library.
        ServerStartError: the address cannot be used.
    """
    uvloop.run(_run(app, on_ready, on_stopping))


async def _run(
    app: Starlette,
    on_ready: Callable[[int], None] | None,
    on_stopping: Callable[[], None] | None,
) -> None:
    server = Server(app)
    port = await server.startup()

    def stop() -> None:
        gateway = server.gateway
        if on_stopping is not None and gateway.has_work and not gateway.is_stopping:
            on_stopping()
        server.stop()

    # Not uvicorn's own handling: it raises the signal again before the drain, and so ends all.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    if on_ready is not None:
        on_ready(port)
    try:
        await server.serve()
    finally:
        await server.shutdown()


class _DrainingServer(uvicorn.Server):
    """Lets what is being spoken end before the sockets are closed."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._gateway.drain()
        await super().shutdown(sockets)


def _uvicorn_config(app: Starlette, config: GatewayConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ws=SpeechSocketProtocol,
        ws_max_size=max(config.max_message_bytes, config.max_audio_message_bytes),
        ws_ping_interval=config.ping_interval_s,
        ws_ping_timeout=config.ping_interval_s,
        # Opus does not compress, and a compressor a socket costs memory and time.
        ws_per_message_deflate=False,
        http=SpeechHttpProtocol,
        lifespan="on",
        # It would take the word of every client on this machine; see `realtime.access.addresses`.
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=5,
    )


def _keep_handshakes_out_of_the_log() -> None:
    """The protocol below logs all headers at DEBUG, and keys are among them."""
    logger = logging.getLogger("uvicorn.error")
    if logger.getEffectiveLevel() < logging.INFO:
        logger.setLevel(logging.INFO)


def _listen(config: GatewayConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it: a client that does not read is noticed after this much.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send.socket_bytes)
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ServerStartError(_bind_message(config, error)) from None
    listener.setblocking(False)
    return listener


def _bind_message(config: GatewayConfig, error: OSError) -> str:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {config.port} is in use: stop the other server or choose another port"
    if error.errno == errno.EACCES:
        return f"no permission to listen on {where}: choose a port above 1023"
    return f"cannot listen on {where}: {error.strerror or error}"
