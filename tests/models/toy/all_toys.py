"""Every toy, loaded once, and a plan for any of them."""

from __future__ import annotations

import numpy as np
import pytest

from models.base import PromptPlan, SpeechModel
from models.spec import OptionValue, PlanRequest
from models.toy.catalogue import TOYS

MODELS: dict[str, SpeechModel] = {name: load() for name, (_, load) in TOYS.items()}
each_model = pytest.mark.parametrize("name", MODELS)


def make_plan(name: str, text: str = "hello", **options: OptionValue) -> PromptPlan:
    audio = np.sin(np.arange(8000) / 9).astype(np.float32)
    has_audio = MODELS[name].spec.takes_audio
    return MODELS[name].plan(
        PlanRequest(
            text=text,
            options=options,
            audio=audio if has_audio else None,
            audio_rate_hz=16_000 if has_audio else None,
        )
    )
