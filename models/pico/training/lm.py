"""Stage `lm`: train the speech language model on prompts, alignment and codes."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the usual name)

from models.pico.training import align, prep
from models.pico.training.common import (
    ABSENT,
    ADVANCE_END,
    SEED,
    STAY_ENDED,
    batches_of,
)
from models.pico.training.nets import SpeechLM
from models.pico.training.parallel import N_RANKS, Job, endless, launch
from models.pico.units import N_UNITS

N_BOOKS = 2
WIDTH, N_LAYERS = 256, 4
_ROWS = 1500 // N_RANKS
ADVANCE_WEIGHT = 1.5
BOOK_WEIGHTS = (1.0, 0.7, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One training sequence: a prompt (n,) and R = T + S - 1 audio rows (FORMAT.md).

    window (R, 5), stay (R,), codes (R, S): the input of each row. advance (R + 1,) and targets
    (R, S): what the last prompt row and each audio row should say; -100 is nothing.
    """

    prompt: np.ndarray
    window: np.ndarray
    stay: np.ndarray
    codes: np.ndarray
    advance: np.ndarray
    targets: np.ndarray


def sequence_of(
    prompt: np.ndarray, pointer: np.ndarray, stay: np.ndarray, codes: np.ndarray
) -> Sequence:
    """Lay one utterance of T steps out as LM rows, column i delayed by 1 + i rows."""
    n_steps, n_books = codes.shape
    n_rows = n_steps + n_books - 1
    held = np.concatenate([pointer, np.repeat(pointer[-1:], n_rows - n_steps)])
    ids = np.full(n_rows, STAY_ENDED, np.int64)
    ids[:n_steps] = align.stay_ids(stay)
    advance = np.full(n_rows + 1, -100, np.int64)
    advance[:n_steps] = np.diff(pointer.astype(np.int64), prepend=0)
    advance[n_steps] = ADVANCE_END
    inputs = np.full((n_rows, n_books), ABSENT, np.int64)
    targets = np.full((n_rows, n_books), -100, np.int64)
    for book in range(n_books):
        kept = codes[: n_rows - 1 - book, book]
        inputs[1 + book : 1 + book + len(kept), book] = kept
        targets[book : book + n_steps, book] = codes[:, book]
    return Sequence(
        prompt=prompt.astype(np.int64), window=align.window(prompt, held).astype(np.int64),
        stay=ids, codes=inputs, advance=advance, targets=targets,
    )  # fmt: skip


def losses(model: SpeechLM, sequences: list[Sequence]) -> tuple[Tensor, list[Tensor]]:
    """Return cross-entropies (nats): of the advance, and of each book; means over the batch."""
    sizes = [len(s.prompt) for s in sequences]
    rows = [len(s.stay) for s in sequences]
    width = model.sizes["d"]
    longest = max(n + r for n, r in zip(sizes, rows, strict=True))
    # Flat places of prompt and audio rows in the padded batch (B * longest): embeddings and heads
    # see no padding.
    prompt_at = np.concatenate([i * longest + np.arange(n) for i, n in enumerate(sizes)])
    audio_at = np.concatenate(
        [i * longest + n + np.arange(r) for i, (n, r) in enumerate(zip(sizes, rows, strict=True))]
    )
    first_at = np.array([i * longest + n - 1 for i, n in enumerate(sizes)])

    def flat(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(s, name) for s in sequences]))

    x = torch.zeros(len(sequences) * longest, width)
    x = x.index_copy(0, torch.from_numpy(prompt_at), model.temb(flat("prompt")))
    audio = model.audio_rows(flat("window"), flat("stay"), flat("codes"))
    x = x.index_copy(0, torch.from_numpy(audio_at), audio)
    y = model(x.view(len(sequences), longest, width)).reshape(-1, width)
    first, later = y[torch.from_numpy(first_at)], y[torch.from_numpy(audio_at)]
    wanted_first = torch.from_numpy(np.array([s.advance[0] for s in sequences]))
    wanted_later = torch.from_numpy(np.concatenate([s.advance[1:] for s in sequences]))
    logits = model.ahead(torch.cat([first, later]))
    advance = F.cross_entropy(logits, torch.cat([wanted_first, wanted_later]))
    targets = flat("targets")
    books = [F.cross_entropy(head(later), targets[:, i]) for i, head in enumerate(model.heads)]
    return advance, books


def sequences_from(speech: prep.Speech, utterances: np.ndarray) -> list[Sequence]:
    """Lay out utterances that have codes."""
    found = []
    assert speech.codes is not None, "the stage `codes` runs before `lm`"
    for u in utterances:
        s = speech.steps(int(u))
        codes = np.asarray(speech.codes[s])[:, :N_BOOKS].astype(np.int64)
        found.append(sequence_of(speech.prompt(int(u)), speech.pointer[s], speech.stay[s], codes))
    return found


def _job(rank: int, budget_s: float) -> Job:
    shifts = [prep.load(shift) for shift in prep.SHIFTS]
    model = SpeechLM(vocab=N_UNITS, n_books=N_BOOKS, width=WIDTH, n_layers=N_LAYERS)
    feeds = []
    for shift, speech in enumerate(shifts):
        training = speech.training()
        lengths = (np.diff(speech.start) + np.diff(speech.p_start) + 1)[training]
        feeds.append((training, endless(lengths, _ROWS, rank, SEED + shift)))

    def loss(step: int) -> tuple[Tensor, dict[str, float]]:
        which = step % len(shifts)
        training, feed = feeds[which]
        advance, books = losses(model, sequences_from(shifts[which], training[next(feed)]))
        total = ADVANCE_WEIGHT * advance
        for weight, book in zip(BOOK_WEIGHTS, books, strict=False):
            total = total + weight * book
        parts = {"A": float(advance.detach())} | {
            f"C{i}": float(b.detach()) for i, b in enumerate(books)
        }
        return total, parts

    def validate() -> str:
        model.eval()
        rows = []
        with torch.no_grad():
            for part in batches_of(list(range(prep.N_VALIDATION)), 20):
                advance, books = losses(model, sequences_from(shifts[0], np.array(part)))
                rows.append([float(advance), *map(float, books)])
        model.train()
        return "validation A, C0.. " + " ".join(f"{v:.4f}" for v in np.mean(rows, axis=0))

    return Job(name="lm", module=model, loss=loss, budget_s=budget_s, validate=validate)


def run(minutes: float) -> None:
    """Train for `minutes` of wall time; write training-work/lm.pt."""
    launch(partial(_job, budget_s=60 * minutes))
