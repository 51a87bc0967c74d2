"""What a run leaves: settings, machine, figures and every stream, as JSON and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtest.measure.flatness import Sample
from loadtest.measure.playout import Underrun
from loadtest.measure.spread import Figures
from loadtest.measure.streams import Heard, Listening, StreamRecord
from realtime.frames import AudioCodec

FORMAT: Final = 1


class ReportError(ValueError):
    """A file that is no report of this load test. The message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What was asked for; two runs with other settings (but the rate) measure different things.

    Args:
        scenario: its name.
        shares: of its parts.
        rate_per_s: callers that arrive.
        duration_s: of the measured time.
        warmup_s: of load before it, which counts for nothing.
        drain_s: how long streams that are under way may take after it.
        seed: of everything that was drawn.
        ttfa_bound_ms: see `Bounds`.
        answer_bound_ms: see `Bounds`.
        microphone: form of the audio that callers send.
        stall_s: see `Scenario`.
        model: that was asked for; empty: the server's default.
        voice: of it.
    """

    scenario: str
    shares: Mapping[str, float]
    rate_per_s: float
    duration_s: float
    warmup_s: float
    drain_s: float
    seed: int
    ttfa_bound_ms: float
    answer_bound_ms: float
    microphone: AudioCodec
    stall_s: float
    model: str = ""
    voice: str = ""

    def lasting(self, rate_per_s: float, duration_s: float) -> RunSettings:
        """The same at another rate, for another time."""
        return dataclasses.replace(self, rate_per_s=rate_per_s, duration_s=duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run.

    Args:
        settings: of it.
        machine: that the client ran on.
        url: of the server.
        models: that the server ran.
        faults: why its figures are worth nothing; empty: the run is valid.
        figures: by kind of stream.
        client: how well the load generator kept up.
        details: what went wrong with streams, in words, and how often.
        streams: every one of the measured time.
        server: its states over time.
    """

    settings: RunSettings
    machine: Mapping[str, Any]
    url: str
    models: Sequence[str]
    faults: Sequence[str]
    figures: Mapping[str, Figures]
    client: Figures
    details: Mapping[str, int]
    streams: Sequence[StreamRecord]
    server: Sequence[Sample] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Whether the client kept up."""
        return not self.faults


def write_report(path: Path, report: RunReport) -> None:
    """Write a run as JSON."""
    body = {"kind": "run", "format": FORMAT, "is_valid": report.is_valid, **_plain(report)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")


def read_report(path: Path) -> RunReport:
    """A run from its file. Raises: `ReportError`."""
    return report_of(load(path, "run"), str(path))


def load(path: Path, kind: str) -> dict[str, Any]:
    """The JSON of one kind in a file. Raises: `ReportError`."""
    try:
        body = json.loads(path.read_text())
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error
    found = body.get("kind") if isinstance(body, dict) else None
    if found != kind or body.get("format") != FORMAT:
        raise ReportError(f"{path} holds no {kind} of `python -m loadtest` (format {FORMAT})")
    assert isinstance(body, dict), "its kind was read"
    return body


def report_of(body: Mapping[str, Any], name: str) -> RunReport:
    """A run from JSON; `name` is for the error. Raises: `ReportError`."""
    try:
        return RunReport(
            settings=RunSettings(**body["settings"]),
            machine=body["machine"],
            url=body["url"],
            models=body["models"],
            faults=body["faults"],
            figures=body["figures"],
            client=body["client"],
            details=body["details"],
            streams=[_stream(one) for one in body["streams"]],
            server=body["server"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{name} is not a whole run: {error!r}") from error


def plain_report(report: RunReport) -> dict[str, Any]:
    """A run as plain values, for a file that holds several."""
    return _plain(report)


def _plain(report: RunReport) -> dict[str, Any]:
    body = dataclasses.asdict(report)
    assert isinstance(body, dict), "a dataclass is a dict of its fields"
    return body


def _stream(body: Mapping[str, Any]) -> StreamRecord:
    heard = body["heard"]
    return StreamRecord(**{**body, "heard": None if heard is None else _heard(heard)})


def _heard(body: Mapping[str, Any]) -> Heard:
    listening = {int(ms): Listening(**one) for ms, one in body["listening"].items()}
    gaps = tuple(Underrun(**gap) for gap in body["gaps"])
    return Heard(**{**body, "listening": listening, "gaps": gaps})
