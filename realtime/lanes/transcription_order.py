"""What `POST /v1/audio/transcriptions` asks for: its form, checked. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, get_args

from starlette.datastructures import FormData, UploadFile

from realtime.agent.base import Agent
from realtime.conversation.conversing import Conversing
from realtime.errors import ProtocolError, printable
from realtime.lanes.http_errors import RefusedError

OPENAI_TRANSCRIBERS: Final = frozenset(
    (
        *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
        "gpt-4o-mini-transcribe-2025-12-15",
    )
)
"""Source: OpenAI API reference, `model` of `POST /v1/audio/transcriptions`."""
FIELDS: Final = frozenset(
    (
        *("file", "model", "language", "prompt", "response_format", "temperature", "stream"),
        *("timestamp_granularities", "chunking_strategy"),
    )
)
MAX_FIELDS: Final = 32
MAX_FIELD_BYTES: Final = 16_384
MAX_FILE_BYTES: Final = 25 * 1024 * 1024
"""As in the OpenAI API."""
REMEDY: Final = (
    "this server has no speech to text: start it without --no-talk, with what hears installed "
    "(pip install 'parley[voice]') or an endpoint named (--stt-url)"
)

Format = Literal["json", "text", "verbose_json", "srt", "vtt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionOrder:
    """What is to be transcribed, and the form in which it goes out."""

    file: BinaryIO
    agent: Agent
    language: str | None
    text_format: Format
    is_event_stream: bool


def read_order(form: FormData, conversing: Conversing) -> TranscriptionOrder:
    """The order in a form.

    Raises:
        ProtocolError: a field does not fit; it is named.
        RefusedError: 404 for a model that is not here.
    """
    fields = _fields(form)
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ProtocolError("missing_field", "file is missing, or is no file", param="file")
    if (file.size or 0) > MAX_FILE_BYTES:
        message = f"the file is larger than {MAX_FILE_BYTES} bytes"
        raise RefusedError(413, "request_too_large", message, param="file")
    text_format = _format(fields.get("response_format", "json"))
    is_event_stream = _boolean("stream", fields.get("stream", "false"))
    if is_event_stream and text_format not in ("json", "text"):
        message = f"a transcript is streamed as json or text, not as {text_format}"
        raise ProtocolError("invalid_value", message, param="response_format")
    _check_temperature(fields.get("temperature", "0"))
    _check_times(fields.get("timestamp_granularities", "segment"))
    return TranscriptionOrder(
        file=file.file,
        agent=_agent(fields.get("model"), conversing),
        language=fields.get("language") or None,
        text_format=text_format,
        is_event_stream=is_event_stream,
    )


def check_hearing(conversing: Conversing | None) -> Conversing:
    """`conversing`, if somebody in it transcribes. Raises: `RefusedError`."""
    if conversing is None or not _transcribing(conversing):
        # Not 501: clients would try that again.
        raise RefusedError(400, "transcription_unavailable", REMEDY)
    return conversing


def _transcribing(conversing: Conversing) -> dict[str, Agent]:
    return {name: one for name, one in conversing.agents.items() if one.can_transcribe}


def _fields(form: FormData) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        # Arrays are sent as `name[]`.
        bare = name.removesuffix("[]")
        if bare not in FIELDS:
            raise ProtocolError("unknown_field", f"unknown field {printable(name)!r}", param=bare)
        if isinstance(value, str):
            fields[bare] = f"{fields[bare]},{value}" if name != bare and bare in fields else value
        elif bare != "file":
            raise ProtocolError("invalid_value", f"{bare} is a file", param=bare)
    return fields


def _agent(asked: str | None, conversing: Conversing) -> Agent:
    agents = _transcribing(conversing)
    if asked is None or asked in OPENAI_TRANSCRIBERS:
        return next(iter(agents.values()))
    if asked not in agents:
        message = f"no model {printable(asked)!r} transcribes here; served: {', '.join(agents)}"
        raise RefusedError(404, "model_not_found", message, param="model")
    return agents[asked]


def _format(asked: str) -> Format:
    for known in get_args(Format):
        if asked == known:
            found: Format = known
            return found
    message = f"response_format is {printable(asked)}, must be one of {', '.join(get_args(Format))}"
    raise ProtocolError("invalid_value", message, param="response_format")


def _boolean(name: str, asked: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if asked.lower() not in known:
        message = f"{name} is {printable(asked)}, must be true or false"
        raise ProtocolError("invalid_value", message, param=name)
    return known[asked.lower()]


def _check_temperature(asked: str) -> None:
    try:
        is_right = 0.0 <= float(asked) <= 1.0
    except ValueError:
        is_right = False
    if not is_right:
        message = f"temperature is {printable(asked)}, must be from 0 to 1"
        raise ProtocolError("invalid_value", message, param="temperature")


def _check_times(asked: str) -> None:
    if asked != "segment":
        message = f"there are times of segments only, not of {printable(asked)}"
        raise ProtocolError("invalid_value", message, param="timestamp_granularities")
