"""The HTTP side: health, models, voices, metrics. Reads only; event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from models.spec import ModelSpec, OptionSpec
from realtime.errors import printable
from realtime.gateway import Gateway
from realtime.lanes.http_errors import RefusedError, refusing
from realtime.metrics import CONTENT_TYPE
from realtime.settings import options_of


def gateway_of(request: Request) -> Gateway:
    """The gateway of the app that serves `request`."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway), "build_app sets it"
    return gateway


async def healthz(request: Request) -> Response:
    """200 while every engine runs, 503 once one has ended or hangs: restart the process."""
    gateway = gateway_of(request)
    stats = {name: handle.stats() for name, handle in gateway.engines.items()}
    failures = {name: one.failure for name, one in stats.items() if not one.is_alive}
    body = {"status": "failed" if failures else "ok", "failures": failures}
    return JSONResponse(body, status_code=503 if failures else 200)


async def readyz(request: Request) -> Response:
    """200 when a new session would be served at once: engines warm, not stopping."""
    gateway = gateway_of(request)
    stats = {name: handle.stats() for name, handle in gateway.engines.items()}
    body = {
        "ready": gateway.is_ready,
        "stopping": gateway.is_stopping,
        "models": {name: one.is_ready and one.is_alive for name, one in stats.items()},
    }
    return JSONResponse(body, status_code=200 if gateway.is_ready else 503)


async def models(request: Request) -> Response:
    """The models served, in the list form of the OpenAI API, with what each states of itself.

    Those that can be talked with have the task `converse`, whatever they are made of.
    """
    return JSONResponse({"object": "list", "data": list(_models(request).values())})


@refusing
async def model(request: Request) -> Response:
    """One of them."""
    wanted: str = request.path_params["model"]
    served = _models(request)
    if wanted not in served:
        message = f"no model {printable(wanted)!r}; served: {', '.join(served)}"
        raise RefusedError(404, "model_not_found", message, param="model")
    return JSONResponse(served[wanted])


async def voices(request: Request) -> Response:
    """The voices of every model that speaks; the first of each is its default."""
    listed = [
        {"id": voice, "object": "audio.voice", "name": voice, "model": name}
        | {"languages": list(spec.languages)}
        for name, spec in gateway_of(request).speaking.items()
        for voice in spec.voices
    ]
    return JSONResponse({"object": "list", "data": listed, "voices": listed})


@refusing
async def nowhere(request: Request) -> Response:
    """What is not there, in the form that clients of the API read."""
    where = f"{request.method} {printable(request.url.path)}"
    raise RefusedError(404, "unknown_url", f"there is no {where} here; see docs/http.md")


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(gateway_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


def _models(request: Request) -> dict[str, dict[str, Any]]:
    specs = gateway_of(request).specs
    agents: Mapping[str, ModelSpec] = request.app.state.agents
    tasks = {name: list(spec.tasks) for name, spec in specs.items()}
    for name in agents:
        tasks[name] = list(dict.fromkeys([*tasks.get(name, []), "converse"]))
    known = {**agents, **specs}
    return {name: _model(name, known[name], tasks[name]) for name in tasks}


def _model(name: str, spec: ModelSpec, tasks: Sequence[str]) -> dict[str, Any]:
    # The frame of a model that only writes is a mere measure of its rows.
    has_audio = any(phase.feeds_codec for phase in spec.phases)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "parley",
        "tasks": tasks,
        "voices": list(spec.voices),
        "languages": list(spec.languages),
        "sample_rate_hz": spec.frame.sample_rate_hz if has_audio else None,
        "frame_rate_hz": spec.frame.frame_rate_hz if has_audio else None,
        "takes_streamed_text": spec.text_capacity > 0,
        "options": [_option(option) for option in options_of(spec)],
        "weights_licence": spec.weights_licence,
        "weights_source": spec.weights_source,
    }


def _option(option: OptionSpec) -> dict[str, Any]:
    return {
        "name": option.name,
        "kind": option.kind,
        "default": option.default,
        "description": option.description,
        "choices": list(option.choices),
        "minimum": option.minimum,
        "maximum": option.maximum,
    }
