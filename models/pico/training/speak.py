"""Speak with trained weights, in batches and without streaming: what the figures are taken from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the usual name)

from models.pico.training.common import (
    ABSENT,
    ADVANCE_END,
    FRAMES_PER_STEP,
    HOP,
    MAX_ADVANCE,
    STAY_CAP,
    STAY_ENDED,
    WINDOW,
    batches_of,
)
from models.pico.training.nets import PostNet, SpeechLM, rotary_tables

_UPS = ((8, 16), (8, 16), (4, 8))
_DILATIONS = ((1, 2), (2, 6), (3, 12))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sampling: temperature of the advance and of each book (0 is greedy), and the clamp."""

    advance: float
    codes: tuple[float, ...]
    max_stay: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """One utterance: prompt (n,), pointer and stay (T,), codes (T, S); `forced`: clamped steps."""

    prompt: np.ndarray
    pointer: np.ndarray
    stay: np.ndarray
    codes: np.ndarray
    forced: int


def allowed_advances(ptr: Tensor, stay: Tensor, last: Tensor, max_stay: int) -> Tensor:
    """Return the grammar's mask (B, 5) of a pointer, its stay and the last unit's index, (B,)."""
    room = (last - ptr)[:, None]
    moves = torch.arange(5).expand(len(ptr), 5)
    ok = (moves >= 1) & (moves <= MAX_ADVANCE) & (moves <= room)
    ok |= (moves == ADVANCE_END) & (room == 0)
    ok |= (moves == 0) & (stay < max_stay)[:, None]
    return ok


def pick(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Sample one id a row of logits (B, N); greedy at temperature 0."""
    if temperature <= 0:
        return logits.argmax(-1)
    chances = (logits / temperature).softmax(-1)
    return torch.multinomial(chances, 1, generator=generator)[:, 0]


class _Cache:
    """Keys and values of a batch: prompts in columns 0 .. n_max - 1, audio rows after them."""

    def __init__(self, model: SpeechLM, sizes: Tensor, n_rows: int) -> None:
        batch, self.n_max = len(sizes), int(sizes.max())
        heads, layers = model.sizes["heads"], model.sizes["L"]
        shape = (layers, 2, batch, heads, self.n_max + n_rows, model.head_dim)
        self.kv = torch.zeros(shape)
        self.mask = torch.zeros(batch, 1, 1, self.n_max + n_rows, dtype=torch.bool)
        self.mask[..., : self.n_max] = (torch.arange(self.n_max) < sizes[:, None])[:, None, None]


def _prefill(model: SpeechLM, prompts: Tensor, sizes: Tensor, cache: _Cache) -> Tensor:
    x = model.temb(prompts)
    cos, sin = rotary_tables(torch.arange(cache.n_max), model.head_dim)
    for layer, block in enumerate(model.layers()):
        q, k, v = block.project(x, cos, sin)
        cache.kv[layer, 0, :, :, : cache.n_max] = k
        cache.kv[layer, 1, :, :, : cache.n_max] = v
        x = block.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
    out: Tensor = model.nf(x)[torch.arange(len(sizes)), sizes - 1]
    return out


def _step(model: SpeechLM, x: Tensor, sizes: Tensor, row: int, cache: _Cache) -> Tensor:
    place = cache.n_max + row
    cache.mask[..., place] = True
    cos, sin = (t[:, None, None] for t in rotary_tables(sizes + row, model.head_dim))
    x = x[:, None]
    for layer, block in enumerate(model.layers()):
        q, k, v = block.project(x, cos, sin)
        cache.kv[layer, 0, :, :, place : place + 1] = k
        cache.kv[layer, 1, :, :, place : place + 1] = v
        keys, values = cache.kv[layer, :, :, :, : place + 1]
        mask = cache.mask[..., : place + 1]
        x = block.finish(x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
    out: Tensor = model.nf(x)[:, 0]
    return out


@torch.no_grad()
def generate(
    model: SpeechLM,
    prompts: list[list[int]],
    settings: Settings,
    seed: int,
    forced_pointers: list[np.ndarray] | None = None,
) -> list[Take]:
    """Speak prompts as one batch; `forced_pointers` replaces the advance by a given alignment."""
    generator = torch.Generator().manual_seed(seed)
    n_books = model.sizes["S"]
    sizes = torch.tensor([len(p) for p in prompts])
    batch, n_max = len(prompts), int(sizes.max())
    padded = torch.zeros(batch, n_max, dtype=torch.long)
    for i, prompt in enumerate(prompts):
        padded[i, : len(prompt)] = torch.tensor(prompt)
    n_rows = 6 * n_max + 60
    cache = _Cache(model, sizes, n_rows)
    y = _prefill(model, padded, sizes, cache)
    ptr, stay = torch.zeros(batch, dtype=torch.long), torch.full((batch,), -1)
    length = torch.full((batch,), -1)
    last = sizes - 2
    forced = torch.zeros(batch, dtype=torch.long)
    codes = torch.full((batch, n_rows, n_books), ABSENT)
    history: list[tuple[Tensor, Tensor]] = []
    reach = torch.arange(batch)[:, None], torch.tensor(WINDOW)
    for row in range(n_rows):
        # Row `row` of the output just computed says A_row and c_{i, row - 1 - i}.
        if row:
            for i in range(n_books):
                step = row - 1 - i
                if step >= 0:
                    drawn = pick(model.heads[i](y), settings.codes[i], generator)
                    open_ = (length < 0) | (step < length)
                    codes[:, step, i] = torch.where(open_, drawn, ABSENT)
        logits = model.ahead(y)
        ok = allowed_advances(ptr, stay, last, settings.max_stay)
        move = pick(logits.masked_fill(~ok, float("-inf")), settings.advance, generator)
        if forced_pointers is not None:
            move = _follow(forced_pointers, row, ptr)
        running = length < 0
        forced += running & (stay >= settings.max_stay)
        length = torch.where(running & (move == ADVANCE_END), row, length)
        running = length < 0
        ahead = torch.where(running, move, 0)
        ptr, stay = ptr + ahead, torch.where(ahead > 0, 0, stay + 1)
        history.append((ptr.clone(), stay.clone()))
        if bool((length >= 0).all()) and row >= int(length.max()) + n_books - 1:
            break
        places = ptr[:, None] + reach[1]
        inside = (places >= 0) & (places < sizes[:, None])
        window = torch.where(inside, padded[reach[0], places.clamp(0, n_max - 1)], 0)
        ids = torch.where(running, stay.clamp(0, STAY_CAP), STAY_ENDED)
        delayed = torch.full((batch, n_books), ABSENT)
        for i in range(n_books):
            if row - 1 - i >= 0:
                delayed[:, i] = codes[:, row - 1 - i, i]
        y = _step(model, model.audio_rows(window, ids, delayed), sizes, row, cache)
    pointers = torch.stack([p for p, _ in history], 1).numpy()
    stays = torch.stack([s for _, s in history], 1).numpy()
    takes = []
    for i, prompt in enumerate(prompts):
        end = int(length[i]) if length[i] >= 0 else len(history)
        takes.append(
            Take(prompt=np.array(prompt), pointer=pointers[i, :end], stay=stays[i, :end],
                 codes=codes[i, :end].numpy(), forced=int(forced[i]))
        )  # fmt: skip
    return takes


def _follow(pointers: list[np.ndarray], row: int, ptr: Tensor) -> Tensor:
    moves = [
        int(p[row]) - int(ptr[i]) if row < len(p) else ADVANCE_END for i, p in enumerate(pointers)
    ]
    return torch.tensor(moves)


class Vocoder:
    """The teacher's HiFi-GAN, from the tensors of vocoder.safetensors."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        """Keep float32 tensors."""
        self.t = {name: tensor.float() for name, tensor in tensors.items()}

    def _conv(self, x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight = self.t[f"{name}.weight"]
        pad = dilation * (weight.shape[-1] - 1) // 2
        return F.conv1d(x, weight, self.t.get(f"{name}.bias"), padding=pad, dilation=dilation)

    @torch.no_grad()
    def __call__(self, latents: np.ndarray) -> np.ndarray:
        """Return samples (256 n_frames,) of latents (n_frames, 192)."""
        x = self._conv(torch.from_numpy(latents.astype(np.float32)).T[None], "conv_pre")
        for u, (stride, kernel) in enumerate(_UPS):
            weight, bias = self.t[f"ups.{u}.weight"], self.t[f"ups.{u}.bias"]
            pad = (kernel - stride) // 2
            x = F.conv_transpose1d(F.leaky_relu(x, 0.1), weight, bias, stride=stride, padding=pad)
            total = torch.zeros_like(x)
            for r, dilations in enumerate(_DILATIONS):
                h = x
                for j, dilation in enumerate(dilations):
                    name = f"resblocks.{3 * u + r}.convs.{j}"
                    h = h + self._conv(F.leaky_relu(h, 0.1), name, dilation)
                total = total + h
            x = total / len(_DILATIONS)
        return torch.tanh(self._conv(F.leaky_relu(x, 0.01), "conv_post"))[0, 0].numpy()


class Voice:
    """All shipped parts, computed in float32."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        """Load the four files of `folder`; `sizes` is lm.json."""
        n_books = sizes["S"]
        self.lm = SpeechLM(vocab=sizes["vocab"], n_books=n_books, width=sizes["d"],
                           n_layers=sizes["L"], n_heads=sizes["heads"], ff=sizes["ff"])  # fmt: skip
        self.post = PostNet(vocab=sizes["vocab"], n_books=n_books)
        for module, name in ((self.lm, "lm"), (self.post, "post")):
            tensors = load_file(folder / f"{name}.safetensors")
            module.load_state_dict({k: v.float() for k, v in tensors.items()})
            module.eval()
        codec = load_file(folder / "codec.safetensors")
        self.codec = {name: tensor.float().numpy() for name, tensor in codec.items()}
        self.vocoder = Vocoder(load_file(folder / "vocoder.safetensors"))

    @torch.no_grad()
    def latents(self, take: Take) -> np.ndarray:
        """Return latents (4 T, 192) of a take."""
        from models.pico.training import align, codec

        window = torch.from_numpy(align.window(take.prompt, take.pointer).astype(np.int64))[None]
        stay = torch.from_numpy(align.stay_ids(take.stay).astype(np.int64))[None]
        codes = torch.from_numpy(take.codes.astype(np.int64))[None]
        y = self.post(window, stay, codes, torch.ones(1, len(take.stay), 1))[0]
        return codec.decode(y.numpy(), self.codec)

    def wave(self, take: Take) -> np.ndarray:
        """Return samples of a take."""
        samples = self.vocoder(self.latents(take))
        assert len(samples) == len(take.stay) * FRAMES_PER_STEP * HOP, "one step, 1024 samples"
        return samples

    def speak(self, prompts: list[list[int]], settings: Settings, seed: int) -> list[Take]:
        """Generate takes in batches of like length; order is kept."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        takes: dict[int, Take] = {}
        for number, part in enumerate(batches_of(order, 20)):
            chosen = [prompts[i] for i in part]
            found = generate(self.lm, chosen, settings, seed * 1000 + number)
            takes.update(zip(part, found, strict=True))
        return [takes[i] for i in range(len(prompts))]
