"""Stage `choose`: sampling settings from the DEV sentences only.

The advance temperature is the one whose take-to-take spread of duration comes closest to the
teacher's; the code temperature trades the spread of pitch against WER. The table goes to
training-work/choose.json; export.py holds what was chosen from it.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from models.pico.training import heldout
from models.pico.training.common import FRAMES_PER_STEP, WORK, console
from models.pico.training.evaluate import error_row, load_voice, prompt_of, spread_row
from models.pico.training.listen import Listener
from models.pico.training.speak import Settings, Voice
from models.pico.training.teacher import Teacher

ADVANCE = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
CODES = (0.5, 0.7, 0.85, 1.0)
_N_TAKES = 4


def duration_spread(lengths: np.ndarray) -> tuple[float, float]:
    """Return mean steps, and the take-to-take standard deviation in percent; (takes, sentences)."""
    return float(lengths.mean()), float(100 * np.log(lengths).std(axis=0, ddof=1).mean())


def durations(voice: Voice, settings: Settings, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Try advance temperatures; codes do not matter much here."""
    teacher = Teacher(31)
    wanted = np.array([[len(teacher.speak(p).latents) / FRAMES_PER_STEP for p in prompts]
                       for _ in range(_N_TAKES)])  # fmt: skip
    mean, std = duration_spread(wanted)
    rows = [{"who": "teacher", "mean_steps": mean, "take_std_percent": std}]
    for advance in ADVANCE:
        tried = replace(settings, advance=advance)
        takes = [voice.speak(prompts, tried, 40 + s) for s in range(_N_TAKES)]
        lengths = np.array([[len(t.pointer) for t in row] for row in takes])
        mean, std = duration_spread(lengths)
        forced = sum(t.forced for row in takes for t in row)
        rows.append({"who": f"A {advance}", "mean_steps": mean, "take_std_percent": std,
                     "clamped": forced})  # fmt: skip
        console.print(rows[-1])
    return rows


def pitches(voice: Voice, settings: Settings, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Try code temperatures: WER and pitch."""
    listener, teacher = Listener(), Teacher(32)
    waves = [voice.vocoder(teacher.speak(p).latents) for p in prompts]
    rows: list[dict[str, Any]] = [
        {"who": "teacher", **error_row(listener, heldout.DEV, waves), **spread_row(waves, prompts)}
    ]
    for heat in CODES:
        tried = replace(settings, codes=(heat,) * len(settings.codes))
        waves = [voice.wave(t) for t in voice.speak(prompts, tried, 50)]
        row = error_row(listener, heldout.DEV, waves)
        rows.append({"who": f"C {heat}", **row, **spread_row(waves, prompts)})
    for row in rows:
        row.pop("missed")
        console.print({k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()})
    return rows


def run() -> None:
    """Print and write both tables, from the exported weights."""
    voice, settings = load_voice()
    prompts = [prompt_of(t) for t in heldout.DEV]
    table = {"durations": durations(voice, settings, prompts)}
    table["pitches"] = pitches(voice, settings, prompts)
    (WORK / "choose.json").write_text(json.dumps(table, indent=1), encoding="utf-8")
