"""A transcript in the forms of the OpenAI API. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from realtime.agent.recording import HeardPiece
from realtime.lanes.transcription_order import Format


def transcript_response(
    pieces: Sequence[HeardPiece], seconds: float, text_format: Format, language: str | None
) -> Response:
    """The answer.

    Args:
        pieces: what was said.
        seconds: of the whole recording.
        text_format: of the answer.
        language: that was asked for.
    """
    match text_format:
        case "json":
            return JSONResponse({"text": text_of(pieces), "usage": usage_of(seconds)})
        case "verbose_json":
            return JSONResponse(_verbose(pieces, seconds, language))
        case "text":
            return PlainTextResponse(text_of(pieces) + "\n")
        case "srt":
            cues = [f"{n}\n{_cue(one, ',')}" for n, one in enumerate(pieces, start=1)]
            return PlainTextResponse("\n".join(cues))
        case "vtt":
            cues = [_cue(one, ".") for one in pieces]
            return PlainTextResponse("\n".join(["WEBVTT\n", *cues]))


def text_of(pieces: Sequence[HeardPiece]) -> str:
    """All that was said."""
    return " ".join(piece.text for piece in pieces)


def usage_of(seconds: float) -> dict[str, Any]:
    """What it cost."""
    return {"type": "duration", "seconds": round(seconds, 3)}


def _verbose(pieces: Sequence[HeardPiece], seconds: float, language: str | None) -> dict[str, Any]:
    return {
        "task": "transcribe",
        "language": language or "",
        "duration": round(seconds, 3),
        "text": text_of(pieces),
        "segments": [
            {
                "id": idx,
                "seek": round(piece.start_s * 100),
                "start": round(piece.start_s, 3),
                "end": round(piece.end_s, 3),
                "text": piece.text,
                "tokens": [],
                "temperature": 0.0,
            }
            for idx, piece in enumerate(pieces)
        ],
        "usage": usage_of(seconds),
    }


def _cue(piece: HeardPiece, point: str) -> str:
    start, end = _clock(piece.start_s, point), _clock(piece.end_s, point)
    return f"{start} --> {end}\n{piece.text}\n"


def _clock(seconds: float, point: str) -> str:
    whole_ms = round(seconds * 1000)
    minutes, ms = divmod(whole_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{ms // 1000:02d}{point}{ms % 1000:03d}"
