"""One published family on the engine, in turns with its reference; a process of its own.

    python -m loadtest.bench.decoding orpheus FOLDER

FOLDER holds a checkpoint, as `loadtest.bench.published` makes it. Prints a JSON value a line: null
for each take, and at the end the figures. The engine draws as the published model does, and never
ends a stream by itself; its detokenizer is measured alone, on the side.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.device import load_on
from engine.loop import EngineLoop
from engine.types import AbortStream, EngineEvent, OpenStream, StreamId
from loadtest.bench.references import REFERENCES
from models.base import Advance, Decoded, SpeechModel, TextFeed
from models.codecs.causal import DTYPES
from models.spec import ModelSpec, PlanRequest

BATCHES: Final = (1, 8, 16)
N_ROUNDS: Final = 3
TAKE_S: Final = 3.0
"""Time for one batch in one round; at least `MIN_STEPS` are taken."""
MIN_STEPS: Final = 3
MAX_STEPS: Final = 20
MOST_STEPS: Final = 200
"""Of a take, those with prompts included."""
MAX_FRAMES: Final = 40
PAGE_SIZE: Final = 16
MOST_ROWS: Final = 1024
"""Of a stream that does not write: its prompt and `MAX_FRAMES` frames."""
TEXT: Final = "One, two."
ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = "reference"
TOKEN2WAV: Final = "token2wav"
"""No family: the detokenizer that some share."""
APART: Final = {"qwen3-tts": "qwen", "opuslm": "espnet", TOKEN2WAV: "cosyvoice"}
"""Families whose reference has libraries of its own, by the name of their folder."""

Row = dict[str, Any]


def reference_environment(family: str) -> dict[str, str]:
    """Of a process that runs the family's own library; `make test` installs what is apart."""
    own = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if family in APART:
        paths = (
            Path(sys.prefix) / "oracles" / APART[family],
            ROOT / "tests" / "parity" / "oracles",
            ROOT,
        )
        own["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return own


class Reference(AbstractContextManager["Reference"]):
    """The process of `loadtest.bench.references`, ready."""

    def __init__(self, family: str, folder: Path) -> None:
        command = [sys.executable, "-m", "loadtest.bench.references", family, str(folder)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=reference_environment(family),
        )
        self._answer()

    def steps_ms(self, n_steps: int) -> list[float]:
        """A take."""
        assert self._process.stdin is not None, "made with a pipe"
        self._process.stdin.write(f"{n_steps}\n")
        self._process.stdin.flush()
        steps: list[float] = json.loads(self._answer())
        return steps

    def _answer(self) -> str:
        assert self._process.stdout is not None, "made with a pipe"
        # Libraries print what they think of a checkpoint.
        for line in self._process.stdout:
            if line.startswith(("ready", "[")):
                return line
        raise SystemExit("the reference ended: run it alone to see why")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Ours:
    """The engine with the model, warm; nothing in it ends by itself and nothing is detokenized."""

    def __init__(self, model: SpeechModel) -> None:
        self.model = model
        self._n_opened = 0
        _patch(model, "advance", _endless(model.advance))
        _patch(model, "decode", _silence(model))
        config = EngineConfig(
            max_streams=max(BATCHES),
            n_pages=_n_pages(model.spec, PAGE_SIZE),
            page_size=PAGE_SIZE,
            policy="throughput",
            target_load=1.0,
        )
        self.loop = EngineLoop(model, config, self._take, time.monotonic)
        self.loop.warm_up()

    def _take(self, events: Sequence[EngineEvent]) -> None:
        pass

    def steps_ms(self, n_streams: int, n_steps: int) -> list[float]:
        """Milliseconds of decode steps of so many streams."""
        opened = [self._open() for _ in range(n_streams)]
        taken: list[float] = []
        n_waited, n_rows = 0, n_streams * (1 if self.model.spec.guidance is None else 2)
        metrics = self.loop.metrics
        while len(taken) < n_steps:
            before = metrics.prefill_rows.n
            start_s = time.perf_counter()
            self.loop.step()
            step_ms = 1000 * (time.perf_counter() - start_s)
            if metrics.decode_rows.last == n_rows and metrics.prefill_rows.n == before:
                taken.append(step_ms)
            n_waited += 1
            assert n_waited < MOST_STEPS, f"not all {n_streams} streams decode: {self.loop.stats}"
        for stream_id in opened:
            self.loop.inbox.put(AbortStream(stream_id=stream_id))
        while self.loop.step():
            pass
        return taken

    def _open(self) -> StreamId:
        self._n_opened += 1
        stream_id = StreamId(self._n_opened)
        plan = self.model.plan(PlanRequest(text=TEXT, seed=self._n_opened))
        self.loop.inbox.put(
            OpenStream(
                stream_id=stream_id,
                plan=replace(plan, max_frames=MAX_FRAMES),
                seed=self._n_opened,
                asked_s=time.monotonic(),
                is_paced=False,
            )
        )
        return stream_id


def _n_pages(spec: ModelSpec, page_size: int) -> int:
    """Room for the largest batch; pages that are not used take no memory."""
    n_sequences = max(BATCHES) * (1 if spec.guidance is None else 2)
    # For text no frame is counted: such a stream is given room for all its positions.
    n_rows = spec.backbone.max_positions if spec.gives_text else MOST_ROWS
    return 1 + n_sequences * (1 + n_rows // page_size)


def _patch(model: SpeechModel, name: str, call: Callable[..., object]) -> None:
    setattr(model, name, call)


def _endless(advance: Callable[[Tensor, Tensor, TextFeed], Advance]) -> Callable[..., Advance]:
    """`advance` of a stream that goes on whatever is drawn: random weights end at any row."""

    def call(state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        made = advance(state, ids, feed)
        return replace(made, is_finished=torch.zeros_like(made.is_finished))

    return call


def _silence(model: SpeechModel) -> Callable[..., Decoded]:
    """A `decode` that costs nothing."""
    n_samples = model.spec.frame.samples_per_frame

    def call(
        frames: Tensor, n_valid: Tensor, state: dict[str, Tensor], first: Tensor, last: Tensor
    ) -> Decoded:
        n_frames = frames.shape[1] - model.spec.codec.left_context_frames
        pcm = torch.zeros(len(frames), n_frames * n_samples)
        return Decoded(pcm=pcm, n_samples=n_valid * n_samples, state=state)

    return call


@torch.inference_mode()
def detokenizer_ms(model: SpeechModel) -> float:
    """Milliseconds for a frame of one stream, in the largest chunks that playing streams get."""
    codec = model.spec.codec
    n_frames = codec.chunk_frames[-1]
    shape = (1, codec.left_context_frames + n_frames, model.spec.frame.n_codebooks)
    frames = torch.zeros(shape, dtype=torch.int64)
    state = {one.name: torch.zeros(1, *one.shape, dtype=DTYPES[one.dtype]) for one in codec.state}
    n_valid, no = torch.tensor([n_frames]), torch.tensor([False])
    taken = []
    for number in range(1 + N_ROUNDS):
        start_s = time.perf_counter()
        state = model.decode(frames, n_valid, state, torch.tensor([number == 0]), no).state
        taken.append(1000 * (time.perf_counter() - start_s) / n_frames)
    return statistics.median(taken[1:])


def measure(family: str, folder: Path, tick: Callable[[], None]) -> Row:
    """The figures of a family; `tick` is called `n_ticks(family)` times."""
    model = load_on(folder)
    spec = model.spec
    row: Row = {
        "frame_ms": 1000 * spec.frame.frame_s,
        "rows_per_frame": spec.frame.rows_per_frame,
        "chunk_frames": spec.codec.chunk_frames[-1],
        "detokenizer_ms": detokenizer_ms(model),
    }
    tick()
    ours = Ours(model)
    if family not in REFERENCES:
        return {**row, **_figures(_rounds(ours, None, tick))}
    with Reference(family, folder) as reference:
        return {**row, **_figures(_rounds(ours, reference, tick))}


def n_ticks(family: str) -> int:
    """How many takes a family has."""
    return 1 + N_ROUNDS * (len(BATCHES) + (family in REFERENCES))


def _rounds(
    ours: Ours, reference: Reference | None, tick: Callable[[], None]
) -> list[dict[str, float]]:
    """Median step of each take in ms, all takes in turns."""
    takes: dict[str, Callable[[int], list[float]]] = {}
    if reference is not None:
        takes[REFERENCE] = reference.steps_ms
    for n_streams in BATCHES:
        takes[str(n_streams)] = partial(ours.steps_ms, n_streams)
    n_steps = dict.fromkeys(takes, MIN_STEPS)
    rounds = []
    for _ in range(N_ROUNDS):
        medians = {}
        for name, take in takes.items():
            medians[name] = statistics.median(take(n_steps[name]))
            wanted = round(1000 * TAKE_S / medians[name])
            n_steps[name] = min(MAX_STEPS, max(MIN_STEPS, wanted))
            tick()
        rounds.append(medians)
    return rounds


def _figures(rounds: Sequence[dict[str, float]]) -> Row:
    """Medians over the rounds; ratios are of what was measured in the same round."""
    row: Row = {f"step_{n}_ms": statistics.median(one[str(n)] for one in rounds) for n in BATCHES}
    row |= {"reference_ms": None, **{f"ratio_{n}": None for n in BATCHES}}
    if REFERENCE in rounds[0]:
        row["reference_ms"] = statistics.median(one[REFERENCE] for one in rounds)
        for n in BATCHES:
            ratios = (one[REFERENCE] * n / one[str(n)] for one in rounds)
            row[f"ratio_{n}"] = statistics.median(ratios)
    return row


def main(family: str, folder: Path) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    row = measure(family, folder, lambda: print("null", flush=True))
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
