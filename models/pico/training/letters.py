"""Train `models/pico/weights/letters.safetensors`: `python -m models.pico.training.letters`.

Words of the dictionaries (before pruning) are aligned letter by letter with their units; a small
bidirectional GRU learns the chunk of each letter. Every twentieth word, by hash, is held out.
Build time only.
"""

from __future__ import annotations

import logging
import random
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from models.pico.letters import ALPHABET, LETTERS_PATH, N_LAYERS, read_letter_model
from models.pico.lexicon import decode_units, encode_units
from models.pico.training.alignment import align, estimate
from models.pico.training.lexicon import collect, read_sources
from models.pico.units import ids_to_units

log = logging.getLogger(__name__)

WIDTH: Final = 112
EMBED: Final = 32
BATCH: Final = 256
N_EPOCHS: Final = 4
RATE: Final = 6e-3
RARE_CHUNK: Final = 12
"""Chunks seen less often are left out, with the words that need them: mostly dictionary slips."""
SEED: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One word: letter ids (1 to 26) and the chunk class of each letter."""

    word: str
    letters: list[int]
    classes: list[int]


class LetterNet(nn.Module):
    """The torch twin of `models.pico.letters.LetterModel`."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET) + 1, EMBED, padding_idx=0)
        self.gru = nn.GRU(EMBED, WIDTH, N_LAYERS, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(2 * WIDTH, n_classes)

    def forward(self, letters: Tensor) -> Tensor:
        """Chunk scores, (n_words, n_letters, n_classes), of words of one length."""
        scores: Tensor = self.out(self.gru(self.embed(letters))[0])
        return scores


def is_held_out(word: str) -> bool:
    """Whether a word is kept out of training: one in twenty, the same in every run."""
    return zlib.crc32(word.encode()) % 20 == 0


def make_examples(words: dict[str, str]) -> tuple[list[Example], list[str]]:
    """Aligned words and the chunk of each class."""
    pairs = [(word, says) for word, says in words.items() if word.isalpha() and 2 < len(word) < 24]
    sample = pairs[:: max(1, len(pairs) // 30_000)]
    scores = estimate(sample, n_rounds=4)
    aligned = [(word, align(word, says, scores)) for word, says in pairs]
    counts = Counter(chunk for _, chunks in aligned for chunk in chunks)
    classes = [chunk for chunk, count in counts.most_common() if count >= RARE_CHUNK]
    number = {chunk: one for one, chunk in enumerate(classes)}
    examples = [
        Example(
            word=word,
            letters=[ALPHABET.index(letter) + 1 for letter in word],
            classes=[number[chunk] for chunk in chunks],
        )
        for word, chunks in aligned
        if chunks and all(chunk in number for chunk in chunks)
    ]
    log.info("%d of %d words aligned, %d chunks", len(examples), len(pairs), len(classes))
    return examples, classes


def train(examples: list[Example], n_classes: int) -> LetterNet:
    """Fit the net on words that are not held out."""
    torch.manual_seed(SEED)
    shuffle = random.Random(SEED)
    net = LetterNet(n_classes)
    by_length = group_by_length([one for one in examples if not is_held_out(one.word)])
    n_steps = N_EPOCHS * sum(len(range(0, len(words), BATCH)) for words, _ in by_length)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, n_steps, pct_start=0.1)
    started_s = time.monotonic()
    for epoch in range(N_EPOCHS):
        losses: list[float] = []
        for letters, classes in _batches(by_length, shuffle):
            loss = nn.functional.cross_entropy(net(letters).flatten(0, 1), classes.flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        log.info("epoch %d loss %.3f, %.0f s", epoch, mean, time.monotonic() - started_s)
    return net.eval()


def group_by_length(examples: list[Example]) -> list[tuple[Tensor, Tensor]]:
    """Letters and classes, (n_words, n_letters) each, of words of one length: no padding."""
    groups: dict[int, list[Example]] = defaultdict(list)
    for one in examples:
        groups[len(one.letters)].append(one)
    return [
        (torch.tensor([one.letters for one in group]), torch.tensor([one.classes for one in group]))
        for _, group in sorted(groups.items())
    ]


def _batches(
    by_length: list[tuple[Tensor, Tensor]], shuffle: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """All words once, in batches of one length, in random order."""
    rows: list[tuple[int, Tensor]] = []
    for group, (letters, _) in enumerate(by_length):
        order = torch.randperm(len(letters))
        rows.extend((group, order[start : start + BATCH]) for start in range(0, len(order), BATCH))
    shuffle.shuffle(rows)
    for group, chosen in rows:
        letters, classes = by_length[group]
        yield letters[chosen], classes[chosen]


def save(net: LetterNet, classes: list[str]) -> None:
    """Write the weights in the names that `models.pico.letters` reads, as fp16."""
    state = net.state_dict()
    tensors = {"embed": state["embed.weight"]}
    for layer in range(N_LAYERS):
        for direction, suffix in (("forward", ""), ("backward", "_reverse")):
            for ours, theirs in (("in", "ih"), ("state", "hh")):
                for kind, name in (("w", "weight"), ("b", "bias")):
                    key = f"gru.{name}_{theirs}_l{layer}{suffix}"
                    tensors[f"gru.{layer}.{direction}.{kind}_{ours}"] = state[key]
    tensors |= {"out.weight": state["out.weight"], "out.bias": state["out.bias"]}
    half = {name: tensor.half().contiguous() for name, tensor in tensors.items()}
    save_file(half, LETTERS_PATH, metadata={"chunks": "\n".join(classes)})
    LETTERS_PATH.chmod(0o644)


def score(words: dict[str, str]) -> dict[str, float]:
    """Accuracy of the shipped file on held-out words.

    Word accuracy with and without stress, and unit error rate (edits over units).
    """
    model = read_letter_model(LETTERS_PATH)
    held = [word for word in words if word.isalpha() and 2 < len(word) < 24 and is_held_out(word)]
    right = plain_right = edits = n_units = 0
    for word in held:
        says, truth = encode_units(model.sound(word)), words[word]
        right += says == truth
        plain_right += _without_stress(says) == _without_stress(truth)
        edits += edit_distance(says, truth)
        n_units += len(truth)
    n = len(held)
    return {
        "words": n,
        "word": right / n,
        "word_no_stress": plain_right / n,
        "uer": edits / n_units,
    }


def _without_stress(says: str) -> list[str]:
    return [unit.lstrip("ˈˌ") for unit in ids_to_units(decode_units(says))]


def edit_distance(left: str, right: str) -> int:
    """Levenshtein distance."""
    row = list(range(len(right) + 1))
    for place, one in enumerate(left):
        previous, row[0] = row[0], place + 1
        for column, other in enumerate(right):
            kept = previous + (one != other)
            previous = row[column + 1]
            row[column + 1] = min(kept, previous + 1, row[column] + 1)
    return row[-1]


def main() -> None:
    """Train, save, and report held-out accuracy."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    words, _ = collect(read_sources())
    examples, classes = make_examples(words)
    save(train(examples, len(classes)), classes)
    size = LETTERS_PATH.stat().st_size
    log.info("%d bytes; held out: %s", size, score(words))


if __name__ == "__main__":
    main()
