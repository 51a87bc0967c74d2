"""Stage `evaluate`: the figures of the model card, from the shipped weights.

WER and failures on held-out sentences, spread of pitch and duration against the teacher's, and
what the codes carry. Results go to training-work/evaluation-*.json.
"""

import json
from typing import Any

import numpy as np

from models.pico.front import text_to_units
from models.pico.training import heldout, measure, prep
from models.pico.training.codec import decode
from models.pico.training.common import (
    ABSENT,
    BOA_ID,
    BOS_ID,
    SAMPLE_RATE_HZ,
    WEIGHTS,
    WORK,
    console,
)
from models.pico.training.listen import Listener
from models.pico.training.speak import Settings, Take, Voice
from models.pico.training.teacher import NOISE_SCALE, NOISE_W, Teacher

Row = dict[str, Any]
SETS = {"test": heldout.TEST, "dev": heldout.DEV, "more": heldout.MORE}
TOO_LONG = 1.5
SILENT_RMS = 0.02
_N_SPREAD, _N_TAKES, _N_TAKE_SENTENCES = 100, 4, 25


def prompt_of(text: str) -> list[int]:
    """Return the prompt of a text through the shipped text front."""
    return [BOS_ID, *text_to_units(text).ids, BOA_ID]


def load_voice() -> tuple[Voice, Settings]:
    """Load the shipped weights and their default sampling."""
    facts = json.loads((WEIGHTS / "lm.json").read_text(encoding="utf-8"))
    chosen = facts["sampling"]
    settings = Settings(
        advance=chosen["advance"]["temperature"],
        codes=tuple(book["temperature"] for book in chosen["codes"]),
        max_stay=facts["max_stay"],
    )
    return Voice(WEIGHTS, facts), settings


def teacher_waves(
    voice: Voice, prompts: list[list[int]], seed: int, noise: float, noise_w: float
) -> list[np.ndarray]:
    """Let the teacher speak, through the same vocoder weights."""
    teacher = Teacher(seed)
    return [voice.vocoder(teacher.speak(p, noise, noise_w).latents) for p in prompts]


def error_row(listener: Listener, texts: list[str], waves: list[np.ndarray]) -> Row:
    """Return WER in percent and its counts."""
    result, pairs = listener.word_errors(texts, waves)
    return {
        "wer_percent": round(100 * result.wer, 2), "substitutions": result.substitutions,
        "deletions": result.deletions, "insertions": result.insertions,
        "words": sum(len(wanted.split()) for wanted, _ in pairs),
        "missed": [[w, h] for w, h in pairs if w != h],
    }  # fmt: skip


def failures(takes: list[Take], waves: list[np.ndarray], expected: list[int], max_stay: int) -> Row:
    """Count takes that miss their stop, hold a unit to the clamp, are silent or far too long.

    `expected` is the teacher's length in samples at noise 0.
    """
    ratios = np.array([len(w) / n for w, n in zip(waves, expected, strict=True)])
    stopped = [t.pointer[-1] == len(t.prompt) - 2 for t in takes]
    return {
        "takes": len(takes),
        "stop_missed": int(len(takes) - sum(stopped)),
        "pointer_back": sum(bool((np.diff(t.pointer) < 0).any()) for t in takes),
        "clamped_steps": sum(t.forced for t in takes),
        "longest_stay_steps": int(max(t.stay.max() for t in takes)) + 1,
        "clamp_steps": max_stay + 1,
        "silent": sum(measure.rms(w) < SILENT_RMS for w in waves),
        "too_long": int((ratios > TOO_LONG).sum()),
        "length_ratio_min_mean_max": [round(float(v), 3) for v in
                                      (ratios.min(), ratios.mean(), ratios.max())],
    }  # fmt: skip


def spread_row(waves: list[np.ndarray], prompts: list[list[int]]) -> dict[str, float]:
    """Return how lively a set of utterances is."""
    pitch = [measure.pitch_hz(w) for w in waves]
    voiced = [p for p in pitch if len(p) > 8]
    seconds = np.array([len(w) / SAMPLE_RATE_HZ for w in waves])
    rate = seconds / np.array([len(p) for p in prompts])
    pooled = np.concatenate(voiced)
    return {
        "f0_mean_hz": float(pooled.mean()), "f0_std_hz": float(pooled.std()),
        "f0_std_within_hz": float(np.mean([p.std() for p in voiced])),
        "f0_std_between_hz": float(np.std([p.mean() for p in voiced])),
        "f0_p5_hz": float(np.percentile(pooled, 5)), "f0_p95_hz": float(np.percentile(pooled, 95)),
        "duration_mean_s": float(seconds.mean()), "duration_std_s": float(seconds.std()),
        "rate_std_ms_per_unit": float(1000 * rate.std()),
    }  # fmt: skip


def take_spread(waves: list[list[np.ndarray]]) -> dict[str, float]:
    """Return take-to-take spread; waves[sentence][take]."""
    log_s = [np.log([len(w) for w in takes]).std(ddof=1) for takes in waves]
    means = [[measure.pitch_hz(w).mean() for w in takes] for takes in waves]
    return {
        "duration_std_percent": float(100 * np.mean(log_s)),
        "f0_mean_std_hz": float(np.mean([np.std(m, ddof=1) for m in means])),
    }


def spread(voice: Voice, settings: Settings) -> Row:
    """Compare liveliness of pico and teacher on 100 sentences and over takes of 25."""
    texts = heldout.MORE[:_N_SPREAD]
    prompts = [prompt_of(t) for t in texts]
    teacher = teacher_waves(voice, prompts, 21, NOISE_SCALE, NOISE_W)
    ours = [voice.wave(t) for t in voice.speak(prompts, settings, 21)]
    rows = {"teacher": spread_row(teacher, prompts), "pico": spread_row(ours, prompts)}
    rows["ratio"] = {k: round(rows["pico"][k] / v, 3) for k, v in rows["teacher"].items()}
    some = prompts[:_N_TAKE_SENTENCES]
    ours_takes = [[voice.wave(t) for t in voice.speak(some, settings, s)] for s in range(_N_TAKES)]
    teacher_takes = [
        teacher_waves(voice, some, 100 + s, NOISE_SCALE, NOISE_W) for s in range(_N_TAKES)
    ]
    takes = {
        "teacher": take_spread([list(t) for t in zip(*teacher_takes, strict=True)]),
        "pico": take_spread([list(t) for t in zip(*ours_takes, strict=True)]),
    }
    takes["ratio"] = {k: round(takes["pico"][k] / v, 3) for k, v in takes["teacher"].items()}
    return {"sentences": len(texts), **rows, "takes": takes}


def codes_carry(voice: Voice) -> Row:
    """Resynthesize 100 unseen teacher renderings with their codes, shuffled ones, and none."""
    speech = prep.load(0)
    assert speech.codes is not None, "the stage `codes` writes them"
    rng = np.random.default_rng(5)
    rows: dict[str, list[float]] = {}
    gaps: dict[str, list[float]] = {}
    for u in range(100):
        s = speech.steps(u)
        codes = np.asarray(speech.codes[s]).astype(np.int64)
        want = voice.vocoder(decode(speech.x[s].astype(np.float32), voice.codec))
        first = codes.copy()
        first[:, 1:] = ABSENT
        variants = {
            "teacher codes": codes,
            "first book only": first,
            "shuffled codes": codes[rng.permutation(len(codes))],
            "no codes": np.full_like(codes, ABSENT),
        }
        for name, chosen in variants.items():
            take = Take(prompt=speech.prompt(u), pointer=speech.pointer[s], stay=speech.stay[s],
                        codes=chosen, forced=0)  # fmt: skip
            wave = voice.wave(take)
            rows.setdefault(name, []).append(measure.mel_distance(wave, want))
            f0, f0_want = measure.pitch_hz(wave), measure.pitch_hz(want)
            if len(f0) > 8 and len(f0_want) > 8:
                gap = abs(np.median(f0) - np.median(f0_want))
                gaps.setdefault(name, []).append(float(gap))
    return {
        "log_mel_l1": {k: round(float(np.mean(v)), 4) for k, v in rows.items()},
        "median_f0_gap_hz": {k: round(float(np.mean(v)), 2) for k, v in gaps.items()},
        "utterances": len(rows["no codes"]),
    }


def seeds_differ(voice: Voice, settings: Settings) -> Row:
    """Show that one seed repeats itself and two differ."""
    prompts = [prompt_of(t) for t in heldout.DEV[:10]]
    first, again, other = (voice.speak(prompts, settings, seed) for seed in (1, 1, 2))

    def same(a: list[Take], b: list[Take]) -> int:
        return sum(
            bool(np.array_equal(x.codes, y.codes) and np.array_equal(x.pointer, y.pointer))
            for x, y in zip(a, b, strict=True)
        )

    return {"takes": len(prompts), "equal_same_seed": same(first, again),
            "equal_other_seed": same(first, other)}  # fmt: skip


def teacher_row(voice: Voice, name: str, prompts: list[list[int]], listener: Listener) -> Row:
    """Return the teacher's WER on one set, kept until the text front changes."""
    path = WORK / f"evaluation-teacher-{name}.json"
    if path.exists():
        found: Row = json.loads(path.read_text(encoding="utf-8"))
        if found["prompts"] == prompts:
            return found
    lively = teacher_waves(voice, prompts, 11, NOISE_SCALE, NOISE_W)
    still = teacher_waves(voice, prompts, 12, 0.0, 0.0)
    found = {
        "prompts": prompts,
        "lengths": [len(w) for w in still],
        "teacher": error_row(listener, SETS[name], lively),
        "teacher_noise_0": error_row(listener, SETS[name], still),
    }
    path.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    return found


def sentences(voice: Voice, settings: Settings, name: str) -> Row:
    """WER and failures on one held-out set, pico and teacher."""
    listener = Listener()
    texts = SETS[name]
    prompts = [prompt_of(t) for t in texts]
    known = teacher_row(voice, name, prompts, listener)
    row: Row = {"sentences": len(texts)}
    row |= {who: known[who] for who in ("teacher", "teacher_noise_0")}
    for seed in (0, 1) if name != "more" else (0,):
        takes = voice.speak(prompts, settings, seed)
        waves = [voice.wave(t) for t in takes]
        row[f"pico_seed_{seed}"] = error_row(listener, texts, waves)
        row[f"failures_seed_{seed}"] = failures(takes, waves, known["lengths"], settings.max_stay)
    return row


def run(which: str) -> None:
    """Measure and write training-work/evaluation-{name}.json; `which` is a name or all."""
    voice, settings = load_voice()
    for name in (*SETS, "codes", "spread", "seeds") if which == "all" else (which,):
        if name in SETS:
            found = sentences(voice, settings, name)
        elif name == "codes":
            found = codes_carry(voice)
        else:
            found = {"spread": spread, "seeds": seeds_differ}[name](voice, settings)
        for who, row in found.items():
            shown = (
                {k: v for k, v in row.items() if k != "missed"} if isinstance(row, dict) else row
            )
            console.print(f"{name} {who}: {shown}")
        path = WORK / f"evaluation-{name}.json"
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
