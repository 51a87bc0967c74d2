"""Models of every kind on the GPU: recorded steps against plain ones, and both against the CPU.

    python -m loadtest.gpu_check.families [--dry-run]

Toys, one of each kind, say whole streams in float32: the same ids everywhere. Small models of the
two published families run given rows in half precision through FlashInfer and its layers, which
must come near to the same rows in float32 on the CPU.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from engine.attention import make_attention
from engine.attention.base import AttentionBackend, Piece
from engine.config import AttentionChoice, EngineConfig, GraphChoice
from engine.loop import EngineLoop
from engine.types import AudioChunk, EngineEvent, OpenStream, StreamFinished, StreamId
from loadtest.gpu_check.random_models import MODELS
from loadtest.gpu_check.telling import tell
from loadtest.gpu_check.where import Where, parse
from models.base import PromptPlan, SpeechModel
from models.layers import fused
from models.layers.transformer import cast_decoders
from models.spec import PlanRequest
from models.toy.catalogue import TOYS

Pcm = npt.NDArray[np.float32]
CPU: Final = torch.device("cpu")
KINDS: Final = ("interleaved", "delayed", "depth", "mixed", "streamed")
BACKENDS: Final[tuple[AttentionChoice, ...]] = ("torch", "flashinfer")
TEXTS: Final = ("hello", "three words here", "no")
N_PROMPT, N_STEPS, N_SEQUENCES = 21, 12, 3
"""Rows of a prompt that ends within a page, rows after it, sequences that run together."""
SAME: Final = 1e-4
"""Of samples: another code moves them by more, another order of sums by less."""
NEAR: Final = 0.08
"""Of hidden states near 1 after two layers in bfloat16, which keeps 8 bits."""


def main() -> None:
    """Check all, tell each, and fail if one is not as it should be."""
    where, _ = parse(__doc__)
    faults: list[str] = []
    for name, check in _checks(where).items():
        start_s = time.monotonic()
        found = check()
        found["seconds"] = round(time.monotonic() - start_s, 1)
        tell(**{name: found})
        if not found["is_right"]:
            faults.append(name)
    if faults:
        raise SystemExit(f"not as on the CPU: {', '.join(faults)}")


def _checks(where: Where) -> dict[str, Callable[[], dict[str, Any]]]:
    kinds = KINDS[1:3] if where.is_dry else KINDS
    toys = {f"toy-{kind}": partial(check_streams, f"toy-{kind}", where) for kind in kinds}
    return {**toys, **{name: partial(check_rows, name, where) for name in MODELS}}


def check_streams(name: str, where: Where) -> dict[str, Any]:
    """Whole streams of a toy: on the CPU, plain on the device, recorded on the device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = TOYS[name][1]()
    expected = _speak(model, CPU, "off")
    found: dict[str, Any] = {}
    model = _moved(model, where.device)
    for how, graphs in _ways(where).items():
        said = _speak(model, where.device, graphs)
        found[how] = all(map(_is_same, said, expected))
    return {**found, "is_right": all(found.values())}


def _ways(where: Where) -> dict[str, GraphChoice]:
    return {"eager": "off"} if where.is_dry else {"eager": "off", "graph": "cuda"}


def _speak(model: SpeechModel, device: torch.device, graphs: GraphChoice) -> list[Pcm]:
    """PCM of streams that run together."""
    chunks: dict[StreamId, list[Pcm]] = {StreamId(n): [] for n in range(len(TEXTS))}
    ended: set[StreamId] = set()

    def take(events: Sequence[EngineEvent]) -> None:
        for event in events:
            if isinstance(event, AudioChunk):
                chunks[event.stream_id].append(event.pcm)
            elif isinstance(event, StreamFinished):
                ended.add(event.stream_id)

    config = EngineConfig(
        max_streams=4, policy="throughput", attention="torch", graphs=graphs, target_load=1.0
    )
    loop = EngineLoop(model, config, take, time.monotonic, device)
    loop.warm_up()
    for stream_id, text in zip(chunks, TEXTS, strict=True):
        plan = model.plan(PlanRequest(text=text))
        opened = OpenStream(
            stream_id=stream_id,
            plan=_on_host(plan),
            seed=int(stream_id),
            asked_s=time.monotonic(),
            is_paced=False,
        )
        loop.inbox.put(opened)
    loop.step()
    while loop.stats.n_active or loop.stats.n_queued:
        loop.step()
    assert len(ended) == len(TEXTS), f"{len(TEXTS) - len(ended)} streams failed"
    return [np.concatenate(one) for one in chunks.values()]


def _on_host(plan: PromptPlan) -> PromptPlan:
    return replace(plan, embeds=None if plan.embeds is None else plan.embeds.cpu())


def _is_same(said: Pcm, expected: Pcm) -> bool:
    return said.shape == expected.shape and bool(np.abs(said - expected).max(initial=0) < SAME)


def check_rows(name: str, where: Where) -> dict[str, Any]:
    """Given rows through the backbone of a small model: FlashInfer against the CPU in float32."""
    half = MODELS[name](where, is_small=True)
    exact = _moved(copy.deepcopy(half), CPU)
    cast_decoders(exact, torch.float32)
    expected = _hidden(exact, "torch", CPU, torch.float32, is_static=False)
    fused.switch_on(None)
    found: dict[str, float] = {}
    for how in BACKENDS:
        for is_static in (False, True):
            hidden = _hidden(half, how, where.device, where.dtype, is_static=is_static)
            error = (hidden.float().cpu() - expected).abs().max().item()
            found[f"{how}{'_static' * is_static}"] = round(error, 4)
    return {**found, "is_right": max(found.values()) < NEAR}


@torch.inference_mode()
def _hidden(
    model: SpeechModel,
    how: AttentionChoice,
    device: torch.device,
    dtype: torch.dtype,
    *,
    is_static: bool,
) -> Tensor:
    """Hidden states `(N_SEQUENCES, N_PROMPT + N_STEPS, H)` of rows that are always the same."""
    spec = model.spec
    n_pages = 4 * N_SEQUENCES + 1
    config = EngineConfig(max_streams=N_SEQUENCES, n_pages=n_pages, attention=how)
    attention = make_attention(spec, config, device, dtype)
    for sequence in range(N_SEQUENCES):
        attention.bind(sequence, [1 + 4 * sequence + n for n in (2, 0, 3, 1)])
    generator = torch.Generator().manual_seed(7)
    shape = (N_SEQUENCES, N_PROMPT + N_STEPS, spec.backbone.hidden)
    # Rounded once: what is compared is what is made of it.
    x = torch.randn(shape, generator=generator).to(torch.bfloat16).to(device, dtype)
    parts = [_prompt(model, attention, x)]
    for step in range(N_STEPS):
        sequences, n_before = np.arange(N_SEQUENCES), np.full(N_SEQUENCES, N_PROMPT + step)
        plan = attention.plan_static if is_static else attention.plan_decode
        positions = torch.from_numpy(n_before).to(device)
        rows = model.backbone(x[:, N_PROMPT + step], positions, plan(sequences, n_before))
        parts.append(rows.unsqueeze(1))
    return torch.cat(parts, dim=1)


def _prompt(model: SpeechModel, attention: AttentionBackend, x: Tensor) -> Tensor:
    """All prompts in one batch."""
    pieces = [
        Piece(sequence=n, first_row=n * N_PROMPT, n_rows=N_PROMPT, n_before=0)
        for n in range(N_SEQUENCES)
    ]
    positions = torch.arange(N_PROMPT, device=x.device).repeat(N_SEQUENCES)
    rows = x[:, :N_PROMPT].flatten(0, 1)
    hidden = model.backbone(rows, positions, attention.plan_prefill(pieces))
    return hidden.view(N_SEQUENCES, N_PROMPT, -1)


def _moved(model: SpeechModel, device: torch.device) -> Any:  # noqa: ANN401  a module too
    assert isinstance(model, nn.Module), "every model here is a module"
    return model.to(device)


if __name__ == "__main__":
    main()
