"""Offline work: many texts at once to which nobody listens. How much speech comes out a second."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.simulate import clients
from loadtest.simulate.device import Device, Profile
from loadtest.simulate.sweep import make_policy
from loadtest.simulate.virtual import VirtualEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineFigures:
    """One policy: `audio_s` seconds of speech were made in `took_s`."""

    policy: str
    n_texts: int
    audio_s: float
    took_s: float

    @property
    def speed(self) -> float:
        """Seconds of speech in a second."""
        return self.audio_s / self.took_s


def run_offline(profile: Profile, policy: str, n_texts: int, seed: int) -> OfflineFigures:
    """Have `n_texts` spoken; all may wait for as long as it takes."""
    patient = {**profile.engine, "max_queue": n_texts, "queue_timeout_s": 1e9}
    profile = profile.model_copy(update={"engine": patient})
    device = Device(profile, seed)
    engine = VirtualEngine(profile, make_policy(policy, profile, device), device)
    listeners = engine.run(clients.at_once(profile, n_texts, seed))
    n_frames = sum(sum(listener.chunk_frames) for listener in listeners)
    return OfflineFigures(
        policy=policy,
        n_texts=n_texts,
        audio_s=n_frames * profile.frame_spec.frame_s,
        took_s=engine.now_s,
    )
