"""The ASGI app: routes and lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from realtime.access.client_secrets import ClientSecrets
from realtime.access.guard import Guard
from realtime.conversation.conversing import Conversing
from realtime.gateway import Gateway
from realtime.lanes import http
from realtime.lanes.audio_speech import create_speech
from realtime.lanes.client_secrets import client_secrets_route
from realtime.lanes.realtime import serve_conversation
from realtime.lanes.speech import serve_speech
from realtime.lanes.transcriptions import Transcriptions
from realtime.protocol import REALTIME_PATH, SPEECH_PATH

ALL_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")


def make_app(gateway: Gateway, conversing: Conversing | None = None) -> Starlette:
    """The app around `gateway`, which it starts and closes with its lifespan.

    Without `conversing` there is nobody to talk to: the app only speaks.
    """
    secrets = ClientSecrets(gateway.clock, gateway.config.access.max_client_secrets)
    talk = [] if conversing is None else _conversation_routes(gateway, conversing, secrets)
    transcriptions = Transcriptions(gateway, conversing)

    async def speech(socket: WebSocket) -> None:
        await serve_speech(socket, gateway)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            if conversing is not None:
                await conversing.close()
            await gateway.close()

    app = Starlette(
        routes=[
            WebSocketRoute(SPEECH_PATH, speech),
            *talk,
            Route("/healthz", http.healthz),
            Route("/readyz", http.readyz),
            Route("/v1/models", http.models),
            Route("/v1/models/{model:path}", http.model),
            Route("/v1/audio/voices", http.voices),
            Route("/v1/audio/speech", create_speech, methods=["POST"]),
            Route("/v1/audio/transcriptions", transcriptions.create, methods=["POST"]),
            Route("/v1/{rest:path}", http.nowhere, methods=ALL_METHODS),
            Route("/metrics", http.metrics),
            Mount("/", StaticFiles(directory=gateway.config.web_demo, html=True, check_dir=False)),
        ],
        lifespan=lifespan,
        middleware=_before_every_route(gateway, secrets),
    )
    app.state.gateway = gateway
    app.state.agents = {} if conversing is None else conversing.specs
    return app


def _conversation_routes(
    gateway: Gateway, conversing: Conversing, secrets: ClientSecrets
) -> list[BaseRoute]:
    async def converse(socket: WebSocket) -> None:
        await serve_conversation(socket, gateway, conversing)

    create = client_secrets_route(gateway, conversing, secrets)
    return [
        WebSocketRoute(REALTIME_PATH, converse),
        Route(f"{REALTIME_PATH}/client_secrets", create, methods=["POST"]),
    ]


def _before_every_route(gateway: Gateway, secrets: ClientSecrets) -> list[Middleware]:
    guard = Middleware(Guard, gateway=gateway, secrets=secrets)
    origins = gateway.config.access.origins
    if not origins:
        return [guard]
    # Outside of the guard: a browser asks without a key whether it may ask, and must be able to
    # read a refusal.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["Retry-After"],
    )
    return [cors, guard]
