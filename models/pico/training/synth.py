"""Stage `synth`: the teacher speaks the corpus (two one-thread processes, resumable by shard)."""

import multiprocessing
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

import numpy as np

from models.pico.training.common import (
    BOA_ID,
    BOS_ID,
    HOP,
    SAMPLE_RATE_HZ,
    SEED,
    WORK,
    batches_of,
    console,
    progress,
    read_jsonl,
    save_npz,
    write_jsonl,
)

if TYPE_CHECKING:
    from models.pico.training.teacher import Teacher

SHARD = 250
N_WORKERS = 2
MAX_UNITS = 300


def units_of_corpus() -> list[dict[str, Any]]:
    """Turn corpus sentences into prompts once, so that all stages see the same text front."""
    from models.pico.front import text_to_units

    path = WORK / "prompts.jsonl"
    if path.exists():
        return read_jsonl(path)
    rows, n_failed = [], 0
    with progress() as bar:
        corpus = read_jsonl(WORK / "corpus.jsonl")
        task = bar.add_task("text to units", total=len(corpus), note="")
        for row in corpus:
            bar.advance(task)
            try:
                prompt = [BOS_ID, *text_to_units(row["text"]).ids, BOA_ID]
            except ValueError:
                n_failed += 1
                continue
            if 3 <= len(prompt) <= MAX_UNITS:
                rows.append({**row, "prompt": prompt})
    console.print(f"prompts: {len(rows)}, refused by the text front: {n_failed}")
    write_jsonl(path, rows)
    return rows


def shard_path(shard: int) -> Path:
    """Return where a shard of speech lies."""
    return WORK / "speech" / f"{shard:04d}.npz"


def synthesize_shard(teacher: "Teacher", rows: list[dict[str, Any]], shard: int) -> float:
    """Speak and store one shard; return its seconds of speech."""
    teacher.reseed(SEED + shard)
    spoken = [teacher.speak(row["prompt"]) for row in rows]
    save_npz(
        shard_path(shard),
        latents=np.concatenate([s.latents for s in spoken]).astype(np.float16),
        n_frames=np.array([len(s.latents) for s in spoken], np.int64),
        durations=np.concatenate([s.durations for s in spoken]),
        prompts=np.concatenate([np.array(r["prompt"], np.int16) for r in rows]),
        n_prompt=np.array([len(r["prompt"]) for r in rows], np.int64),
    )
    return sum(len(s.latents) for s in spoken) * HOP / SAMPLE_RATE_HZ


def hours_of(shard: int) -> float:
    """Return the hours of speech of a stored shard."""
    with np.load(shard_path(shard)) as data:
        return float(data["n_frames"].sum()) * HOP / SAMPLE_RATE_HZ / 3600


def _work(rows: list[dict[str, Any]], shards: list[int], done: "Queue[float]") -> None:
    from models.pico.training.teacher import Teacher

    teacher = Teacher(SEED)
    for shard in shards:
        done.put(synthesize_shard(teacher, rows[shard * SHARD : (shard + 1) * SHARD], shard))


def run(max_hours: float = 16.0) -> None:
    """Speak shard after shard until `max_hours` of speech are there or the corpus ends."""
    rows = units_of_corpus()
    shard_path(0).parent.mkdir(exist_ok=True)
    n_shards = -(-len(rows) // SHARD)
    missing = [s for s in range(n_shards) if not shard_path(s).exists()]
    console.print(f"{len(missing)} of {n_shards} shards to speak")
    context = multiprocessing.get_context("spawn")
    hours = sum(hours_of(s) for s in range(n_shards) if shard_path(s).exists())
    with progress() as bar:
        task = bar.add_task("synthesis", total=len(missing), note="")
        # Few shards at a time, so that the limit in hours is kept.
        for group in batches_of(missing, 4 * N_WORKERS):
            if hours >= max_hours:
                break
            done: Queue[float] = context.Queue()
            parts = [group[i::N_WORKERS] for i in range(N_WORKERS)]
            workers = [context.Process(target=_work, args=(rows, p, done)) for p in parts if p]
            for worker in workers:
                worker.start()
            left = len(group)
            while left:
                try:
                    hours += done.get(timeout=2.0) / 3600
                except Empty:
                    assert all(w.is_alive() or w.exitcode == 0 for w in workers), "worker died"
                    continue
                left -= 1
                bar.update(task, advance=1, note=f"{hours:.2f} h of speech")
            for worker in workers:
                worker.join()
    console.print(f"synthesis: {hours:.2f} h of speech")
