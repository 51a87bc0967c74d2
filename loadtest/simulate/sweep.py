"""Tries rates, seeds and policies on one profile. Each run has its own engine, device, clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.config import Limits
from engine.config import Policy as EnginePolicy
from loadtest.simulate import clients
from loadtest.simulate.clients import Listener
from loadtest.simulate.device import Device, Profile
from loadtest.simulate.fixed_chunks import Fcfs, Reference
from loadtest.simulate.outcome import Bar, Figures, Point, bars_of, best, figures_of, points_of
from loadtest.simulate.policies import Ours, Policy
from loadtest.simulate.virtual import VirtualEngine

POLICIES = ("ours", "fcfs", "reference", "throughput")
PATIENCE_S = 60.0
"""A stream that has not ended so long after the window is counted as never heard to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Virtual seconds of a run: the load builds up, is measured, and goes on while that ends."""

    warm_up_s: float = 30.0
    measured_s: float = 120.0
    cool_down_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What was tried and what came out.

    Args:
        profile: name.
        bound_s: TTFA that counts as good.
        window: of each run.
        seeds: of each point.
        points: means over seeds.
        figures: each run.
        bars: empty unless `ours` and `reference` were both tried.
    """

    profile: str
    bound_s: float
    window: Window
    seeds: tuple[int, ...]
    points: list[Point]
    figures: list[Figures]
    bars: list[Bar]


def make_policy(name: str, profile: Profile, device: Device) -> Policy:
    """A policy of `POLICIES`; only what it may know of the profile reaches it.

    Raises:
        ValueError: no such policy.
    """
    frame = profile.frame_spec
    if name == "fcfs":
        return Fcfs(profile.fixed_chunk, frame.frame_s)
    if name == "reference":
        return Reference(profile.fixed_chunk, frame.frame_s)
    modes: dict[str, EnginePolicy] = {"ours": "latency", "throughput": "throughput"}
    if name not in modes:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    config = replace(profile.engine_config, policy=modes[name])
    return Ours(Limits(config=config, frame=frame, codec=profile.codec_spec), device)


def run_once(
    profile: Profile, policy: str, rate_hz: float, seed: int, window: Window
) -> list[Listener]:
    """Those who came in the measured window, after the run."""
    device = Device(profile, seed)
    ends_s = window.warm_up_s + window.measured_s
    arrivals = clients.poisson(profile, rate_hz, ends_s + window.cool_down_s, seed)
    engine = VirtualEngine(profile, make_policy(policy, profile, device), device)
    listeners = engine.run(arrivals, ends_s + PATIENCE_S)
    return [one for one in listeners if window.warm_up_s <= one.arrival.at_s < ends_s]


class Sweeper:
    """Runs points of one profile.

    Args:
        profile: device and model.
        seeds: each point is the mean over them.
        bound_s: TTFA that counts as good.
        window: of each run.
        on_run: called after each run.
    """

    def __init__(
        self,
        profile: Profile,
        seeds: Sequence[int],
        bound_s: float,
        window: Window,
        on_run: Callable[[Figures], None],
    ) -> None:
        self._profile = profile
        self._seeds = tuple(seeds)
        self._bound_s = bound_s
        self._window = window
        self._on_run = on_run
        self._figures: list[Figures] = []

    def sweep(self, policies: Sequence[str], rates_hz: Sequence[float]) -> Sweep:
        """All policies at all rates; then the bars, where they can be held."""
        for rate_hz in rates_hz:
            for policy in policies:
                self._run(policy, rate_hz)
        points = points_of(self._figures)
        bars = self._bars(points) if {"ours", "reference"} <= set(policies) else []
        return Sweep(
            profile=self._profile.name,
            bound_s=self._bound_s,
            window=self._window,
            seeds=self._seeds,
            points=points_of(self._figures),
            figures=self._figures,
            bars=bars,
        )

    def _bars(self, points: Sequence[Point]) -> list[Bar]:
        best_hz = best(points, "reference").rate_hz
        calm_hz, over_hz = round(0.8 * best_hz, 3), 2 * best_hz
        at_80 = [self._run(policy, calm_hz) for policy in ("ours", "reference")]
        # Past this rate is past what is promised: more offered is no fairer a comparison.
        within = [point for point in points if point.rate_hz <= over_hz]
        return bars_of(within, at_80, [self._run("ours", over_hz)])

    def _run(self, policy: str, rate_hz: float) -> Point:
        """One point; runs that were made before are not made again."""
        done = {(one.policy, one.rate_hz, one.seed): one for one in self._figures}
        figures = []
        for seed in self._seeds:
            one = done.get((policy, rate_hz, seed))
            if one is None:
                one = self._measure(policy, rate_hz, seed)
                self._figures.append(one)
                self._on_run(one)
            figures.append(one)
        return points_of(figures)[0]

    def _measure(self, policy: str, rate_hz: float, seed: int) -> Figures:
        return figures_of(
            run_once(self._profile, policy, rate_hz, seed, self._window),
            policy=policy,
            rate_hz=rate_hz,
            seed=seed,
            bound_s=self._bound_s,
            window_s=self._window.measured_s,
        )
