"""Checks and measures a machine with an NVIDIA GPU, in six minutes: JSON under `bench-results/`.

    make gpu-check                on the GPU
    make gpu-check DRY_RUN=1      the same script with small models on the CPU: only that it runs

Kernels are built; meanwhile streams of every family are checked on the GPU against the CPU; then
decoders of their shapes on FlashInfer; and two models of the published sizes with random weights
are measured and then served under load. Nothing is read
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
TO_BE_MADE: Final = "-"
MODELS: Final = ("qwen3-tts-1.7b", "orpheus-3b")
"""Those that are measured; see `loadtest.gpu_check.random_models`."""
DRY: Final = "--dry-run"
KEPT: Final = (
    *("n_streams", "n_finished", "refused_pct", "errors_pct", "audio_s_per_s"),
    *("ttfa_audible_p50_ms", "ttfa_audible_p90_ms", "ttfa_audible_p95_ms"),
    *("underruns_0ms_n", "viable_chunks_pct", "goodput_0ms_per_s"),
)
"""Figures of a load that are told; the rest is in nobody's interest here."""


def parts_of(*, is_dry: bool, checkpoints: str = TO_BE_MADE) -> tuple[tuple[Part, ...], ...]:
    """What is run, in this order; the parts of a group side by side.

    The first builds the kernels that all but `streams` use, which takes compilers and no GPU.
    """
    more = (DRY,) if is_dry else ()

    def part(name: str, title: str, budget_s: float, *arguments: str) -> Part:
        module = f"loadtest.gpu_check.{'serving' if name in MODELS else name}"
        limit = () if is_dry else ("--seconds", f"{budget_s:g}")
        return Part(
            name=name,
            title=title,
            module=module,
            arguments=(*arguments, *more, *limit),
            budget_s=budget_s,
        )

    return (
        (
            part("building", "the GPU; kernels are built", 140.0),
            part("streams", "streams of each family: graph = eager = CPU", 140.0, checkpoints),
        ),
        (part("rows", "FlashInfer and graphs = CPU, in half precision", 45.0),),
        *((part(name, f"{name}: steps, then load", 82.0, name),) for name in MODELS),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts. Returns the exit code: 1 if a part failed."""
    parser = argparse.ArgumentParser(prog="make gpu-check", description=__doc__)
    parser.add_argument(DRY, action="store_true", help="small models on the CPU, a short load")
    parser.add_argument(
        "--checkpoints",
        default=TO_BE_MADE,
        help="a folder with small random checkpoints, see tests/models/checkpoints.py; else they "
        "are made here, by the libraries that they come from",
    )
    parser.add_argument("--out", type=Path, default=Path("bench-results/gpu-check.json"))
    asked = parser.parse_args(arguments)
    console, is_dry = Console(highlight=False), bool(asked.dry_run)
    asked.out.unlink(missing_ok=True)
    outcomes: dict[str, Outcome] = {}
    end_s, load = time.monotonic() + BUDGET_S, _loader(is_dry=is_dry)

    async def run(part: Part) -> None:
        # A trial takes what it takes: nothing is measured.
        budget_s = DRY_LIMIT_S if is_dry else min(part.budget_s, end_s - time.monotonic())
        outcome = await run_part(
            part, budget_s, load, lambda told: console.print(f"  {escape(told)}")
        )
        outcomes[part.name] = outcome
        fault = f"[red]{escape(outcome.fault)}[/]" if outcome.fault else ""
        console.print(f"  {part.name}: {outcome.seconds:.0f} s {fault}")
        # After each part: what was measured must not be lost with the machine.
        _write(asked.out, outcomes, is_dry=is_dry)

    async def run_group(parts: Sequence[Part]) -> None:
        if is_dry:
            # Side by side they would only be in each other's way on the CPU.
            for part in parts:
                await run(part)
        else:
            await asyncio.gather(*map(run, parts))

    for parts in parts_of(is_dry=is_dry, checkpoints=asked.checkpoints):
        console.print(f"[bold]{'; '.join(part.title for part in parts)}[/]")
        asyncio.run(run_group(parts))
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
