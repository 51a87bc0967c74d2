"""Stage `prep`: coordinates and alignment of all speech, flat in memory-mapped files."""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.pico.training import align, codec
from models.pico.training.common import WORK, console, progress
from models.pico.training.synth import shard_path

# Each utterance is cut into steps twice, half a step apart: the same speech gives other codes.
SHIFTS = (0, 2)
N_VALIDATION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """All utterances of one shift; steps lie one after another.

    x (n, 128) float16, pointer and stay (n,) int16, window (n, 5) uint8, codes (n, S) int16 or
    None; steps of utterance u are start[u] : start[u + 1], its prompt is
    prompts[p_start[u] : p_start[u + 1]].
    """

    x: np.ndarray
    pointer: np.ndarray
    stay: np.ndarray
    window: np.ndarray
    start: np.ndarray
    prompts: np.ndarray
    p_start: np.ndarray
    codes: np.ndarray | None

    def __len__(self) -> int:
        """Return the number of utterances."""
        return len(self.start) - 1

    def steps(self, utterance: int) -> slice:
        """Return the steps of an utterance."""
        return slice(int(self.start[utterance]), int(self.start[utterance + 1]))

    def prompt(self, utterance: int) -> np.ndarray:
        """Return the prompt of an utterance, [bos] units [boa]."""
        return self.prompts[int(self.p_start[utterance]) : int(self.p_start[utterance + 1])]

    def training(self) -> np.ndarray:
        """Return the utterances to train on."""
        return np.arange(N_VALIDATION, len(self))


def folder(shift: int) -> Path:
    """Return where the arrays of one shift lie."""
    return WORK / f"prep-{shift}"


def load(shift: int) -> Speech:
    """Open the arrays of one shift; codes are there once the stage `codes` has run."""
    names = ("x", "pointer", "stay", "window", "start", "prompts", "p_start")
    arrays = {name: np.load(folder(shift) / f"{name}.npy", mmap_mode="r") for name in names}
    codes = folder(shift) / "codes.npy"
    return Speech(**arrays, codes=np.load(codes, mmap_mode="r") if codes.exists() else None)


def _shard(
    shard: int, shift: int, constants: dict[str, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    found = []
    with np.load(shard_path(shard)) as data:
        latents, durations, prompts = data["latents"], data["durations"], data["prompts"]
        n_frames, n_prompt = data["n_frames"], data["n_prompt"]
    frame = unit = token = 0
    for frames, size in zip(n_frames, n_prompt, strict=True):
        x = codec.encode(latents[frame : frame + frames], constants, shift)
        pointer = align.pointers(durations[unit : unit + size - 1], len(x), shift)
        if pointer is not None:
            found.append((x.astype(np.float16), pointer, prompts[token : token + size]))
        frame, unit, token = frame + frames, unit + size - 1, token + size
    return found


def run() -> None:
    """Prepare every shift, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_prepare, args=(shift,)) for shift in SHIFTS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0, "a worker failed; its error is above"


def _prepare(shift: int) -> None:
    constants = codec.load()
    shards = sorted(int(p.stem) for p in shard_path(0).parent.glob("????.npz"))
    xs, pointers, prompts = [], [], []
    with progress() as bar:
        task = bar.add_task(f"prep, shift {shift}", total=len(shards), note="")
        for shard in shards:
            for x, pointer, prompt in _shard(shard, shift, constants):
                xs.append(x)
                pointers.append(pointer)
                prompts.append(prompt)
            bar.advance(task)
    folder(shift).mkdir(exist_ok=True)
    stays = [align.stays(p) for p in pointers]
    windows = [align.window(p, q) for p, q in zip(prompts, pointers, strict=True)]
    arrays = {
        "x": np.concatenate(xs),
        "pointer": np.concatenate(pointers),
        "stay": np.concatenate(stays),
        "window": np.concatenate(windows).astype(np.uint8),
        "start": np.cumsum([0, *map(len, xs)]),
        "prompts": np.concatenate(prompts),
        "p_start": np.cumsum([0, *map(len, prompts)]),
    }
    for name, array in arrays.items():
        np.save(folder(shift) / f"{name}.npy", array)
    longest = np.percentile(arrays["stay"], [99, 99.9, 99.99, 100])
    console.print(f"shift {shift}: {len(xs)} utterances, {len(arrays['x'])} steps, "
                  f"stay p99 / p99.9 / p99.99 / max {longest}")  # fmt: skip
