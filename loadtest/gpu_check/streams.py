"""Whole streams of every family on the GPU: recorded steps, plain ones, and the CPU's.

    python -m loadtest.gpu_check.streams CHECKPOINTS [--dry-run]

Models of every kind in float32: toys, the embedded one, and small random checkpoints of all
published families with their own prompts, depth models and detokenizers. The same codes everywhere,
and so nearly the same samples. Checkpoints are in folders within CHECKPOINTS; with `-` they are
made by the libraries that the real ones come from, where those are installed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from engine.config import EngineConfig, GraphChoice
from engine.graphs import make_graphs
from engine.loop import EngineLoop
from engine.types import AudioChunk, EngineEvent, OpenStream, StreamFailed, StreamId
from loadtest.gpu_check.budget import Check, LeftOut, check_all
from loadtest.gpu_check.where import Where, parse
from models import registry
from models.base import PromptPlan, SpeechModel
from models.errors import ModelError, PlanError
from models.spec import PlanRequest

Pcm = npt.NDArray[np.float32]
CPU: Final = torch.device("cpu")
TOYS: Final = ("interleaved", "delayed", "depth", "mixed", "streamed")
EMBEDDED: Final = ("pico", "smollm2-135m")
MAKERS: Final = "tests.models.checkpoints"
TO_BE_MADE: Final = "-"
TEXTS: Final = ("hello there", "three words here")
N_FRAMES: Final = 8
"""Of each stream, at most: several chunks of most models."""
SPOKEN_HZ: Final = 16_000
SPOKEN: Final[Pcm] = (np.sin(np.arange(2 * SPOKEN_HZ) ** 1.2 / 9) / 2).astype(np.float32)
"""What a model hears that speaks with the voice of a recording, or answers one."""
SAME: Final = 3e-3
"""Of the loudest sample. Another code moves samples by a tenth of it and more; convolutions that
add up in another order by less than a thousandth."""
SHORT_POSITIONS: Final = 1024
"""Of a trial; the rotary tables have more."""
N_EMBEDDED: Final = 7
FAMILY: Final = "family"


def main() -> None:
    """Check all, tell each, and fail if one is not as it should be."""
    where, (folder,) = parse(__doc__, "checkpoints")
    check_all(checks_of(folder, where), where)


def checks_of(folder: str, where: Where) -> dict[str, Check]:
    """A check for each model; a published family's by the name of its checkpoint."""
    kinds = TOYS[:1] if where.is_dry else TOYS
    named = (*(f"toy-{kind}" for kind in kinds), *EMBEDDED)
    folders: dict[str, Callable[[], Path]]
    if folder == TO_BE_MADE:
        makers = importlib.import_module(MAKERS)
        folders = {name: partial(makers.made, name) for name in makers.makers()}
    else:
        inside = sorted(path for path in Path(folder).iterdir() if path.is_dir())
        folders = {path.name: partial(Path, path) for path in inside}
    return {
        **{name: partial(_check_named, name, where) for name in named},
        **{name: partial(_check_folder, of, where) for name, of in folders.items()},
    }


def _check_named(name: str, where: Where) -> dict[str, Any]:
    if registry.is_of_cpu(name):
        raise LeftOut("its layers compute on a CPU alone")
    return check_streams(registry.load(name), where)


def _check_folder(folder_of: Callable[[], Path], where: Where) -> dict[str, Any]:
    try:
        folder = folder_of()
    # Their libraries raise what they like, and need not be on a machine with a card.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise LeftOut(f"its checkpoint cannot be made here: {reason[-1][:200]}") from error
    try:
        model = registry.load(folder)
    except ModelError as error:
        if "no model that is known here" in str(error):
            raise LeftOut("no family that is listed reads it") from error
        raise
    return check_streams(model, where)


def check_streams(model: SpeechModel, where: Where) -> dict[str, Any]:
    """Streams that run together: on the CPU, plain on the device, recorded there."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    texts: Sequence[str] = TEXTS
    if where.is_dry:
        _shorten(model)
        texts = TEXTS[:1]
    expected = _speak(model, texts, CPU, "off")
    if isinstance(model, nn.Module):
        model.to(where.device)
    ways: dict[str, GraphChoice] = {"eager": "off", "graph": "cuda"}
    found = {
        way: max(map(difference, _speak(model, texts, where.device, graphs), expected))
        for way, graphs in ways.items()
    }
    found["embed"] = _recorded_embedding(model, where)
    n_samples = min(len(pcm) for pcm in expected)
    is_right = n_samples > 0 and max(found.values()) < SAME
    return {FAMILY: model.spec.name, **found, "n_samples": n_samples, "is_right": is_right}


@torch.inference_mode()
def _recorded_embedding(model: SpeechModel, where: Where) -> float:
    """How far prompt rows that are embedded by a recording are from the same embedded plainly.

    Prompts are recorded where FlashInfer runs them, which does not compute in float32.
    """
    n_columns = model.spec.n_columns
    shape = (N_EMBEDDED, n_columns)
    lowest = [column.ids[0] for column in model.spec.columns]
    ids = torch.tensor([lowest], device=where.device).expand(shape).clone()
    phases = torch.full((N_EMBEDDED,), -1, device=where.device)
    graphs = make_graphs("cuda", where.device)
    assert graphs is not None, "asked for"
    uses = {"ids": ids, "phases": phases}
    graphs.record(("embed",), lambda: (model.embed(ids, phases),), uses)
    # Rows of the prompt, and generated ones that are run again.
    ids[1::2] += 1
    phases[::3] = 0
    (got,) = graphs.run(("embed",), uses)
    expected = model.embed(ids, phases)
    return round(float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-6)), 6)


def _shorten(model: SpeechModel) -> None:
    """Fewer positions and sizes of chunks, so that there is less to record."""
    backbone, codec = model.spec.backbone, model.spec.codec
    # A last call has room for what is too short for another, and for what it ends with.
    least = codec.chunk_frames[0]
    largest = next(n for n in codec.chunk_frames if n >= least - 1 + codec.last_room_frames)
    model.spec = replace(
        model.spec,
        backbone=replace(backbone, max_positions=min(backbone.max_positions, SHORT_POSITIONS)),
        codec=replace(codec, chunk_frames=tuple(sorted({least, largest}))),
    )


def _speak(
    model: SpeechModel, texts: Sequence[str], device: torch.device, graphs: GraphChoice
) -> list[Pcm]:
    """PCM of streams that run together."""
    chunks: dict[StreamId, list[Pcm]] = {StreamId(n): [] for n in range(len(texts))}
    failures: list[str] = []

    def take(events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, AudioChunk):
                chunks[event.stream_id].append(event.pcm)
            elif isinstance(event, StreamFailed):
                failures.append(event.message)

    config = EngineConfig(
        max_streams=len(texts),
        policy="throughput",
        attention="torch",
        graphs=graphs,
        overlap="on" if graphs == "cuda" else "auto",
        target_load=1.0,
        queue_timeout_s=600.0,
    )
    loop = EngineLoop(model, config, take, time.monotonic, device)
    if graphs != "off":
        loop.warm_up()
    for stream_id, text in zip(chunks, texts, strict=True):
        opened = OpenStream(
            stream_id=stream_id,
            plan=_plan(loop, text),
            seed=int(stream_id) + 1,
            asked_s=time.monotonic(),
            is_paced=False,
        )
        loop.inbox.put(opened)
    loop.step()
    while loop.stats.n_active or loop.stats.n_queued:
        loop.step()
    if failures:
        raise RuntimeError(f"{len(failures)} streams failed: {failures[0]}")
    return [np.concatenate(one or [np.zeros(0, np.float32)]) for one in chunks.values()]


def _plan(loop: EngineLoop, text: str) -> PromptPlan:
    """Of the text alone; or with a recording, for models that want one."""
    seconds = N_FRAMES * loop.model.spec.frame.frame_s
    request = PlanRequest(text=text, seed=1, max_seconds=seconds)
    try:
        plan = loop.plan(request)
    except PlanError:
        plan = loop.plan(replace(request, audio=SPOKEN, audio_rate_hz=SPOKEN_HZ))
    return replace(
        plan,
        embeds=None if plan.embeds is None else plan.embeds.cpu(),
        max_frames=min(plan.max_frames, N_FRAMES),
    )


def difference(said: Pcm, expected: Pcm) -> float:
    """The largest of a sample, as a share of the loudest; 1 where one is longer."""
    if said.shape != expected.shape or not len(said):
        return 1.0
    found = np.abs(said - expected).max() / max(float(np.abs(expected).max()), 1e-6)
    return round(float(found), 6) if np.isfinite(found) else 1.0


if __name__ == "__main__":
    main()
