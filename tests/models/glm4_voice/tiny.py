"""A small random GLM-4-Voice checkpoint folder, with the folders of what hears and what speaks."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from models.codecs.block_flow import BlockCodec
from models.glm4_voice.config import DECODER_FOLDER, HEARING_FOLDER
from tests.parity.oracle import ask


def make_checkpoint(folder: Path) -> Path:
    """LM and tokenizer in `folder`, the other two within it."""
    shutil.copytree(_made(), folder, dirs_exist_ok=True)
    return folder


@functools.cache
def _made() -> Path:
    """Made once: a reference takes seconds to start."""
    folder = Path(tempfile.mkdtemp(prefix="parley-glm4-voice-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ask("glm_lm", folder)
    for script, name, apart in (
        ("glm_hearing", HEARING_FOLDER, None),
        ("glm_flow", DECODER_FOLDER, "cosyvoice"),
    ):
        (folder / name).mkdir()
        ask(script, folder / name, apart=apart)
    return folder


def fresh(codec: BlockCodec, n_rows: int = 1) -> dict[str, torch.Tensor]:
    """The state of streams that have not begun."""
    return {
        one.name: torch.zeros(n_rows, *one.shape, dtype=getattr(torch, one.dtype))
        for one in codec.spec.state
    }


def window(codec: BlockCodec, tokens: torch.Tensor, start: int) -> tuple[torch.Tensor, int]:
    """Frames of the call from token `start` on, as the engine gives them, and how many are new."""
    spec = codec.spec
    n_context, size = spec.left_context_frames, spec.chunk_frames[0]
    new, n_old = tokens[start : start + size], min(start, n_context)
    frames = torch.full((1, n_context + size, 1), -1)
    frames[0, n_context:] = 0
    frames[0, n_context : n_context + len(new), 0] = new
    frames[0, n_context - n_old : n_context, 0] = tokens[start - n_old : start]
    return frames, len(new)


@torch.inference_mode()
def stream(
    codec: BlockCodec, tokens: torch.Tensor, *, is_end_known: bool = False
) -> list[np.ndarray]:
    """PCM of each call.

    Args:
        codec: that decodes.
        tokens: `(n,)`.
        is_end_known: with the last whole chunk; otherwise a call follows that brings nothing.
    """
    state, pcm, n_done, size = fresh(codec), [], 0, codec.spec.chunk_frames[0]
    while True:
        frames, n_new = window(codec, tokens, n_done)
        n_done += n_new
        is_last = n_done == len(tokens) and (is_end_known or n_new < size)
        out = codec.decode(frames, torch.tensor([n_new]), state, torch.tensor([is_last]))
        state, n_samples = out.state, int(out.n_samples[0])
        assert not out.pcm[0, n_samples:].any()
        pcm.append(out.pcm[0, :n_samples].numpy())
        if is_last:
            return pcm
