"""Options that several commands have, and how their work is run and drawn."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
import uvloop

from loadtest.display import console
from loadtest.plots import draw_page
from loadtest.report import RunReport
from loadtest.traffic.scenarios import ScenarioError, scenario_of
from realtime.frames import AudioCodec

_Done = TypeVar("_Done")
EXIT_NOT_VALID: Final = 3
"""Figures that are worth nothing, or cannot be compared."""

Url = Annotated[str, typer.Option(help="Server to load.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="PARLEY_API_KEY", help="That the server wants; better in the variable."),
]
ScenarioName = Annotated[str, typer.Option(help="speech, conversation or mixed.")]
Shares = Annotated[
    list[str] | None,
    typer.Option("--share", help="Change a part, as hang_up=0.1; may be given several times."),
]
Seed = Annotated[int, typer.Option(help="Of arrivals, and of all that callers do.")]
Warmup = Annotated[float, typer.Option(min=0.0, help="Load before it that counts for nothing, s.")]
Duration = Annotated[float, typer.Option(min=1.0, help="Measured time, s.")]
Drain = Annotated[float, typer.Option(min=0.0, help="Longest wait for streams after it, s.")]
TtfaMs = Annotated[float, typer.Option(help="First sound of a text in good time, ms.")]
AnswerMs = Annotated[float, typer.Option(help="First sound of an answer in good time, ms.")]
Microphone = Annotated[AudioCodec, typer.Option(help="Form of the audio that callers send.")]
StallS = Annotated[float, typer.Option(min=0.0, help="How long slow readers read nothing, s.")]
Model = Annotated[str, typer.Option(help="That speaks texts; empty: the server's default.")]
Voice = Annotated[str, typer.Option(help="Of the model.")]
Out = Annotated[Path | None, typer.Option(help="Write JSON.")]
Png = Annotated[Path | None, typer.Option(help="Draw a page of plots.")]


def shares_of(scenario: str, given: Sequence[str] | None) -> dict[str, float]:
    """Shares of a scenario, with those changed that were given as `part=share`.

    Raises:
        ScenarioError: not of this form, or no such part.
    """
    changes: dict[str, float] = {}
    for one in given or ():
        part, _, share = one.partition("=")
        try:
            changes[part] = float(share)
        except ValueError:
            raise ScenarioError(f"--share {one!r} must look like hang_up=0.1") from None
    return {str(part): share for part, share in scenario_of(scenario, changes).shares.items()}


def complete(work: Coroutine[Any, Any, _Done]) -> _Done:
    """Run `work` to its end, on uvloop."""
    return uvloop.run(work)


def draw(path: Path | None, reports: Sequence[RunReport]) -> None:
    """Draw the page, if one is wanted. Raises: `PlotError`."""
    if path is not None and reports:
        draw_page(path, reports)
        console.print(f"Drawn in {path}")
