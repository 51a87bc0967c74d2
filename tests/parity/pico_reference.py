"""`pico` once more, whole utterances at a time, straight from `models/pico/training/FORMAT.md`.

Shares no code with the run time: no cache, no state, no masks but the causal one, padding by zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]
_WINDOW = (-1, 0, 1, 2, 3)


@dataclass(frozen=True)
class Sizes:
    """What FORMAT.md keeps in lm.json and the formulas need."""

    n_books: int
    n_codes: int
    n_layers: int
    n_heads: int
    max_stay: int


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain


def rotate(x: Tensor) -> Tensor:
    """Rotary over `x` (heads, rows, head_dim), positions 0, 1, 2, ..."""
    half = x.shape[-1] // 2
    pair = torch.arange(half, dtype=torch.float64)
    place = torch.arange(x.shape[1], dtype=torch.float64)
    angle = place[:, None] * 10_000.0 ** (-pair / half)
    cos, sin = angle.cos().float(), angle.sin().float()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def lm_logits(sizes: Sizes, w: Weights, x: Tensor) -> list[Tensor]:
    """Logits at every row of one sequence of inputs `x` (rows, d): advance, then each book."""
    n_rows, d = x.shape
    head_dim = d // sizes.n_heads
    future = torch.ones(n_rows, n_rows, dtype=torch.bool).triu(1)
    for layer in range(sizes.n_layers):
        p = f"blocks.{layer}."
        h = rms(x, w[p + "n1.w"]) @ w[p + "qkv.weight"].T
        q, k, v = (part.view(n_rows, -1, head_dim).transpose(0, 1) for part in h.chunk(3, dim=1))
        scores = rotate(q) @ rotate(k).transpose(1, 2) / math.sqrt(head_dim)
        attended = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + attended.transpose(0, 1).reshape(n_rows, d) @ w[p + "o.weight"].T
        gate, up = (rms(x, w[p + "n2.w"]) @ w[p + "gu.weight"].T).chunk(2, dim=1)
        x = x + (gate * gate.sigmoid() * up) @ w[p + "dn.weight"].T
    y = rms(x, w["nf.w"])
    heads = ["ahead.weight", *(f"heads.{i}.weight" for i in range(sizes.n_books))]
    return [y @ w[head].T for head in heads]


@dataclass
class Utterance:
    """Steps so far: advances, pointers, stays, and codes by book (possibly ahead of each other)."""

    prompt: list[int]
    pointers: list[int]
    stays: list[int]
    codes: list[list[int]]
    length: int | None = None

    def unit(self, step: int, offset: int) -> int:
        """Unit at the pointer of a step plus an offset; steps past the end hold the last one."""
        pointer = self.pointers[min(step, len(self.pointers) - 1)]
        place = pointer + offset
        return self.prompt[place] if 0 <= place < len(self.prompt) else 0

    def stay_id(self, step: int) -> int:
        if self.length is not None and step >= self.length:
            return 16
        return min(max(self.stays[step], 0), 15)

    def code(self, book: int, step: int, absent: int) -> int:
        is_real = step >= 0 and (self.length is None or step < self.length)
        return self.codes[book][step] if is_real else absent


def prompt_inputs(w: Weights, prompt: list[int]) -> Tensor:
    return torch.stack([w["temb.weight"][unit] for unit in prompt])


def audio_input(sizes: Sizes, w: Weights, said: Utterance, row: int) -> Tensor:
    parts = [w[f"wemb.{j}.weight"][said.unit(row, offset)] for j, offset in enumerate(_WINDOW)]
    parts.append(w["semb.weight"][said.stay_id(row)])
    for book in range(sizes.n_books):
        code = said.code(book, row - 1 - book, sizes.n_codes)
        parts.append(w[f"cemb.{book}.weight"][code])
    return torch.stack(parts).sum(0)


def allowed_advances(sizes: Sizes, said: Utterance) -> list[int]:
    pointer = said.pointers[-1] if said.pointers else 0
    stay = said.stays[-1] if said.stays else -1
    last = len(said.prompt) - 2
    allowed = [a for a in (1, 2, 3) if pointer + a <= last]
    if pointer == last:
        allowed.append(4)
    if stay < sizes.max_stay:
        allowed.append(0)
    return allowed


def roll_out(
    sizes: Sizes, w: Weights, prompt: list[int], n_rows: int
) -> tuple[Utterance, list[list[Tensor]]]:
    """Speak greedily; everything is computed anew at every row. Also the logits of each row."""
    said = Utterance(prompt, [], [], [[] for _ in range(sizes.n_books)])
    inputs = prompt_inputs(w, prompt)
    seen = []
    for row in range(n_rows):
        logits = [column[-1] for column in lm_logits(sizes, w, inputs)]
        seen.append(logits)
        if said.length is None:
            move = max(allowed_advances(sizes, said), key=lambda a: float(logits[0][a]))
            if move == 4:
                said.length = row
            else:
                pointer = said.pointers[-1] if said.pointers else 0
                stay = said.stays[-1] if said.stays else -1
                said.pointers.append(pointer + move)
                said.stays.append(0 if move else stay + 1)
        for book in range(sizes.n_books):
            step = row - 1 - book
            if step >= 0 and (said.length is None or step < said.length):
                said.codes[book].append(int(logits[1 + book].argmax()))
        if said.length is not None and row >= said.length + sizes.n_books - 1:
            break
        inputs = torch.cat([inputs, audio_input(sizes, w, said, row)[None]])
    return said, seen


def frame_table(said: Utterance) -> Tensor:
    """Codes, text window and stay id of each complete step, `(T, S + 6)`."""
    rows = []
    for step in range(len(said.codes[-1])):
        codes = [book[step] for book in said.codes]
        units = [said.unit(step, offset) for offset in _WINDOW]
        rows.append([*codes, *units, said.stay_id(step)])
    return torch.tensor(rows)


def latents(w: Weights, codec: Weights, frames: Tensor) -> Tensor:
    """Latent frames `(4 T, 192)` of the steps in `frames` (see `frame_table`)."""
    n_steps, n_books = len(frames), frames.shape[1] - len(_WINDOW) - 1
    absent = w["C"].shape[1] - 1
    summed = torch.stack([w["C"][i][frames[:, i]] for i in range(n_books)]).sum(0)
    rows = []
    for s, row in enumerate(frames.tolist()):
        units = [w["uemb.weight"][unit] for unit in row[n_books:-1]]
        present = summed.new_tensor([float(code != absent) for code in row[:n_books]])
        rows.append(torch.cat([*units, w["semb.weight"][row[-1]], summed[s] / w["sc"], present]))
    x = torch.stack(rows) @ w["inp.weight"].T + w["inp.bias"]
    for b, (dilation, ahead) in enumerate(zip((1, 1, 1, 2), (1, 1, 0, 0), strict=True)):
        p = f"blocks.{b}."
        h = functional.pad(rms(x, w[p + "n"]).T, (2 * dilation - ahead, ahead))
        h = functional.conv1d(h, w[p + "a.weight"], w[p + "a.bias"], dilation=dilation)
        h = functional.conv1d(h * h.sigmoid(), w[p + "b.weight"], w[p + "b.bias"])
        x = x + h.T
    y = summed + w["sc"] * (rms(x, w["nf"]) @ w["out.weight"].T + w["out.bias"])
    stacked = (y @ codec["P"].T + codec["mu"]).view(4 * n_steps, -1)
    return stacked @ codec["Li"] + codec["zm"]


def vocode(w: Weights, z: Tensor) -> Tensor:
    """PCM `(256 n,)` of latent frames `z` (n, 192)."""
    x = _same_conv(w, "conv_pre", z.T[None], 1)
    for stage, (stride, kernel) in enumerate(((8, 16), (8, 16), (4, 8))):
        x = functional.conv_transpose1d(
            functional.leaky_relu(x, 0.1),
            w[f"ups.{stage}.weight"],
            w[f"ups.{stage}.bias"],
            stride=stride,
            padding=(kernel - stride) // 2,
        )
        blocks = []
        for j, dilations in enumerate(((1, 2), (2, 6), (3, 12))):
            h = x
            for conv, dilation in enumerate(dilations):
                name = f"resblocks.{3 * stage + j}.convs.{conv}"
                h = h + _same_conv(w, name, functional.leaky_relu(h, 0.1), dilation)
            blocks.append(h)
        x = sum(blocks) / 3
    x = functional.conv1d(functional.leaky_relu(x, 0.01), w["conv_post.weight"], padding=3)
    return x.tanh().flatten()


def stretch(z: Tensor, speed: float) -> Tensor:
    """Latent frames read at every `speed`-th place, interpolated linearly, the last one held."""
    n = len(z)
    out = []
    j = 0
    while j * speed < n - 1e-9:
        at = j * speed
        low = math.floor(at + 1e-9)
        share = max(0.0, at - low)
        out.append(z[low] * (1 - share) + z[min(low + 1, n - 1)] * share)
        j += 1
    return torch.stack(out)


def _same_conv(w: Weights, name: str, x: Tensor, dilation: int) -> Tensor:
    kernel = w[f"{name}.weight"].shape[2]
    return functional.conv1d(
        x,
        w[f"{name}.weight"],
        w[f"{name}.bias"],
        padding=dilation * (kernel - 1) // 2,
        dilation=dilation,
    )
