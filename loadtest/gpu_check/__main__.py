"""Checks and measures a machine with an NVIDIA GPU, in six minutes: JSON under `bench-results/`.

    make gpu-check                on the GPU
    make gpu-check DRY_RUN=1      the same script with small models on the CPU: only that it runs

Kernels are built, models of every kind are checked on the GPU against the CPU, and two models of
the published sizes with random weights are measured and then served under load. Nothing is read
from the net. Each part has its own time, and one that fails leaves the others alone. A profile for
`loadtest simulate` is written for each measured model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from loadtest.bench import machine
from loadtest.gpu_check.parts import Facts, Load, Outcome, Part, run_part
from loadtest.measure.spread import Figures
from loadtest.report import RunReport, RunSettings
from loadtest.run import run_load
from loadtest.sweep import wait_for_rest
from loadtest.target import Target

BUDGET_S: Final = 355.0
"""Of all parts together; the rest of six minutes is for starting and writing."""
DRY_LIMIT_S: Final = 600.0
RATES: Final = (10.0, 20.0, 4.0, 1.0)
"""Requests a second; those with goals first, for time may run out."""
PROFILE: Final = "profile"
DRY: Final = "--dry-run"
KEPT: Final = (
    *("n_streams", "n_finished", "refused_pct", "errors_pct", "audio_s_per_s"),
    *("ttfa_audible_p50_ms", "ttfa_audible_p90_ms", "ttfa_audible_p95_ms"),
    *("underruns_0ms_n", "viable_chunks_pct", "goodput_0ms_per_s"),
)
"""Figures of a load that are told; the rest is in nobody's interest here."""


def parts_of(*, is_dry: bool) -> tuple[Part, ...]:
    """What is run, in this order; the first builds the kernels that the others use."""
    more = (DRY,) if is_dry else ()

    def served(name: str) -> Part:
        return Part(
            name=name,
            title=f"{name}: steps, then load",
            module="loadtest.gpu_check.serving",
            arguments=(name, *more),
            budget_s=82.0,
        )

    return (
        Part(
            name="kernels",
            title="the GPU; kernels are built",
            module="loadtest.gpu_check.building",
            arguments=more,
            budget_s=140.0,
        ),
        Part(
            name="families",
            title="graph = eager = CPU",
            module="loadtest.gpu_check.families",
            arguments=more,
            budget_s=50.0,
        ),
        served("qwen3-tts-1.7b"),
        served("orpheus-3b"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts. Returns the exit code: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument(DRY, action="store_true", help="small models on the CPU, a short load")
    parser.add_argument("--out", type=Path, default=Path("bench-results/gpu-check.json"))
    asked = parser.parse_args(arguments)
    console, is_dry = Console(highlight=False), bool(asked.dry_run)
    asked.out.unlink(missing_ok=True)
    outcomes: dict[str, Outcome] = {}
    end_s, load = time.monotonic() + BUDGET_S, _loader(is_dry=is_dry)
    # A trial takes what it takes: nothing is measured.
    limit_s = DRY_LIMIT_S if is_dry else 0.0
    for part in parts_of(is_dry=is_dry):
        console.print(f"[bold]{part.title}[/]")
        budget_s = limit_s or min(part.budget_s, end_s - time.monotonic())
        outcome = asyncio.run(
            run_part(part, budget_s, load, lambda told: console.print(f"  {escape(told)}"))
        )
        outcomes[part.name] = outcome
        fault = f"[red]{escape(outcome.fault)}[/]" if outcome.fault else ""
        console.print(f"  {outcome.seconds:.0f} s {fault}")
        # After each part: what was measured must not be lost with the machine.
        _write(asked.out, outcomes, is_dry=is_dry)
    console.print(f"Written to {asked.out}")
    return 1 if any(outcome.fault for outcome in outcomes.values()) else 0


def _loader(*, is_dry: bool) -> Load:
    rates = RATES[-1:] if is_dry else RATES
    duration_s, warmup_s = (1.5, 0.0) if is_dry else (5.0, 1.0)

    async def load(url: str, tell: Callable[[Facts], None]) -> None:
        target = Target(url=url)
        for rate in rates:
            await wait_for_rest(target)
            settings = RunSettings(
                scenario="speech",
                shares={},
                rate_per_s=rate,
                duration_s=duration_s,
                warmup_s=warmup_s,
                drain_s=DRY_LIMIT_S if is_dry else 6.0,
                seed=1,
                ttfa_bound_ms=500.0,
                answer_bound_ms=1500.0,
                microphone="opus",
                stall_s=30.0,
            )
            report = await run_load(target, settings, lambda progress: None)
            tell({f"load_{rate:g}_per_s": _told(report)})

    return load


def _told(report: RunReport) -> dict[str, Any]:
    figures: Figures = report.figures.get("speech", {})
    kept = {name: value for name, value in figures.items() if name in KEPT}
    return {**kept, "faults": list(report.faults), "details": dict(report.details)}


def _write(path: Path, outcomes: dict[str, Outcome], *, is_dry: bool) -> None:
    """All results so far, and each profile in a file of its own, as `simulate` reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {name: outcome.plain() for name, outcome in outcomes.items()}
    body = {"is_dry_run": is_dry, "on": machine.describe(), "parts": parts}
    path.write_text(json.dumps(body, indent=1) + "\n")
    for name, outcome in outcomes.items():
        if PROFILE in outcome.facts:
            own = path.with_name(f"{path.stem}-{name}.json")
            own.write_text(json.dumps(outcome.facts[PROFILE], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
