"""A device on paper, from JSON: what work costs on it, the shape of the model, who speaks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.config import EngineConfig
from models.spec import CodecSpec, FrameSpec

PROFILES = Path(__file__).resolve().parent.parent / "profiles"


class ProfileError(Exception):
    """A profile that cannot be read, with the field that is wrong."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CostMs(_Strict):
    """Milliseconds of a call: `fixed + each * units`; nothing at all takes no time."""

    fixed: float = Field(ge=0)
    each: float = Field(ge=0)

    def of(self, n: int) -> float:
        """Milliseconds for `n` units."""
        return self.fixed + self.each * n if n else 0.0


class FixedChunk(_Strict):
    """The one chunk size of policies that know no other.

    Args:
        window_frames: frames that a detokenizer call takes, and the first chunk waits for.
        step_frames: new frames of each further call; the rest of the window overlaps.
        max_batch: rows of a step, and chunks of a call.
    """

    window_frames: int = Field(ge=1)
    step_frames: int = Field(ge=1)
    max_batch: int = Field(ge=8)


class Speech(_Strict):
    """What is asked for: lognormal speech of `mean_s` seconds, prompts of one length."""

    n_prompt_rows: int = Field(ge=1)
    mean_s: float = Field(gt=0)
    sigma: float = Field(ge=0)


class Profile(_Strict):
    """One device with one model.

    Args:
        about: what it stands for.
        frame: fields of `FrameSpec`, but the frame rate, which follows.
        codec: fields of `CodecSpec`: the chunks that Parley's policy may choose from.
        fixed_chunk: the chunk of the other policies.
        decode_ms: an LM step, units are its rows.
        prefill_ms: a prompt pass, units are its rows.
        chunk_ms: a detokenizer call, units are the frames that it computes, context included.
        not_hidden: share of the shorter of LM step and detokenizer call that does not overlap.
        noise: sigma of the lognormal factor on each measured time.
        speech: what is asked for.
        engine: fields of `EngineConfig` that its operator would set.
    """

    name: str
    about: str = ""
    frame: dict[str, Any]
    codec: dict[str, Any]
    fixed_chunk: FixedChunk
    decode_ms: CostMs
    prefill_ms: CostMs
    chunk_ms: CostMs
    not_hidden: float = Field(ge=0, le=1)
    noise: float = Field(ge=0, le=0.5)
    speech: Speech
    engine: dict[str, Any]

    @property
    def frame_spec(self) -> FrameSpec:
        """The model's pace."""
        rate_hz = self.frame["sample_rate_hz"] / self.frame["samples_per_frame"]
        return FrameSpec(frame_rate_hz=rate_hz, **self.frame)

    @property
    def codec_spec(self) -> CodecSpec:
        """The chunks that Parley's policy may choose from."""
        sizes = tuple(self.codec["chunk_frames"])
        return CodecSpec(**{**self.codec, "chunk_frames": sizes})

    @property
    def engine_config(self) -> EngineConfig:
        """Chunks go straight to the listener here: no gateway holds audio back."""
        return EngineConfig(**{"held_s": 0.0, **self.engine})


def load_profile(path: Path) -> Profile:
    """Read a profile; its name is the file's.

    Raises:
        ProfileError: no such file, or a field of it is wrong.
    """
    try:
        profile = Profile.model_validate({"name": path.stem, **json.loads(path.read_text())})
        profile.frame_spec, profile.codec_spec, profile.engine_config  # noqa: B018  they check
    except (OSError, json.JSONDecodeError, ValidationError, TypeError, KeyError) as error:
        raise ProfileError(f"{path}: {error}") from None
    return profile


class Device:
    """Takes virtual time for work. Its noise is drawn from the seed.

    Args:
        profile: what work costs on average.
        seed: of the noise.
    """

    def __init__(self, profile: Profile, seed: int) -> None:
        self._profile = profile
        self._draw = random.Random(seed)

    def decode_s(self, n_rows: int) -> float:
        """Seconds of an LM step of one row for each stream."""
        return self._noisy(self._profile.decode_ms.of(n_rows))

    def prefill_s(self, n_rows: int) -> float:
        """Seconds of a prompt pass."""
        return self._noisy(self._profile.prefill_ms.of(n_rows))

    def chunk_s(self, n_frames: int) -> float:
        """Seconds of a detokenizer call that computes `n_frames`."""
        return self._noisy(self._profile.chunk_ms.of(n_frames))

    def together_s(self, lm_s: float, codec_s: float) -> float:
        """Seconds of LM work and detokenizer work side by side."""
        return max(lm_s, codec_s) + self._profile.not_hidden * min(lm_s, codec_s)

    def _noisy(self, ms: float) -> float:
        return ms * 1e-3 * self._draw.lognormvariate(0.0, self._profile.noise)
