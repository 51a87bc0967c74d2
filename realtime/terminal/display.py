"""What the `parley` command shows: models, findings, figures, a progress bar. Knows no engine.

Lines are not wrapped to the terminal where they may be copied or piped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.spec import OptionSpec
from realtime.settings import COMMON_OPTIONS
from realtime.terminal.doctor import Finding
from realtime.terminal.say import SayReport
from realtime.terminal.talk import TalkReport

if TYPE_CHECKING:
    from models.registry import FamilyInfo

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "fault": "[red]fault[/]"}


def show_models(known: Sequence[FamilyInfo]) -> None:
    """A block for each model, what has been run on what among it; then the options of all."""
    for family in known:
        out.print(f"[bold]{family.name}[/]  {escape(family.runs_on)}", soft_wrap=True)
        facts = Table.grid("", "", padding=(0, 2), pad_edge=True)
        facts.columns[1].overflow = "fold"
        facts.add_row("tasks", ", ".join(family.tasks) or "-")
        facts.add_row("voices", ", ".join(family.voices) or "-")
        facts.add_row("languages", ", ".join(family.languages) or "-")
        facts.add_row("options", escape("\n".join(map(_option_line, family.options)) or "-"))
        facts.add_row("weights", escape(family.fault or family.weights_licence))
        facts.add_row("from", escape(family.weights_source or "-"))
        facts.add_row("tried", escape(family.tried))
        if family.needs:
            facts.add_row("needs", "`--model ORG/NAME` of the hub, or `--model FOLDER` of")
            facts.add_row("", escape(family.needs))
        out.print(facts)
    out.print("Every model that speaks takes these options too:")
    for option in COMMON_OPTIONS:
        out.print(f"  {escape(_option_line(option))}", soft_wrap=True)


def show_finding(finding: Finding) -> None:
    """A line, and what to do under it."""
    line = f"{_MARKS[finding.mark]}\t{finding.name}: {escape(finding.seen)}"
    out.print(line, soft_wrap=True)
    if finding.advice:
        out.print(f"\t{escape(finding.advice)}", style="dim", soft_wrap=True)


def show_report(report: SayReport) -> None:
    """How a text was said."""
    if report.file is not None:
        out.print(f"Wrote {escape(report.file)}")
    if report.note:
        out.print(f"Not heard: {escape(report.note)}")
    if report.ttfa_ms is not None and report.real_time_factor is not None:
        out.print(
            f"First sound after {report.ttfa_ms:.0f} ms, {report.audio_s:.2f} s of audio, "
            f"real-time factor {report.real_time_factor:.2f} ({report.model}, {report.codec})",
            soft_wrap=True,
        )
    if report.status != "completed":
        out.print(f"The response is {report.status}.")


def show_talk(report: TalkReport) -> None:
    """A question, its answer and where the time went."""
    show_turn("you", report.question)
    show_turn("parley", report.answer)
    if report.file is not None:
        out.print(f"Wrote {escape(report.file)} ({report.audio_s:.2f} s)", soft_wrap=True)
    if report.ttfa_ms is not None:
        out.print(f"First sound {report.ttfa_ms:.0f} ms after the end of speech ({report.model})")
    stages = ", ".join(f"{name} {value:.0f}" for name, value in report.stages_ms.items())
    if stages:
        out.print(f"Stages in ms, as the server counts: {stages}", style="dim", soft_wrap=True)
    if report.status != "completed":
        out.print(f"The answer is {report.status}.")


def show_turn(who: str, text: str) -> None:
    """What somebody said, or a remark."""
    out.print(f"[bold]{who}:[/] {escape(text)}" if who else escape(text), soft_wrap=True)


def progress_bar() -> Progress:
    """Of a start; gone at its end, and not shown where nobody watches."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


def _option_line(option: OptionSpec) -> str:
    bounds = {"at least": option.minimum, "at most": option.maximum, "default": option.default}
    facts = [option.kind, ", ".join(option.choices)]
    facts += [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
    return f"{option.name}: {option.description} ({'; '.join(filter(None, facts))})"
