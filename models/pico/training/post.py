"""Stages `predictor`, `codes` and `post`.

predictor: the post-net without codes, fitted to the teacher: what units and alignment determine.
codes: residual k-means of what it leaves: pitch, timing, energy.
post: the same net trained on with codes.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from models.pico.training import align, prep
from models.pico.training.common import (
    ABSENT,
    N_CODES,
    SEED,
    WORK,
    batches_of,
    console,
    progress,
)
from models.pico.training.nets import PostNet
from models.pico.training.parallel import Job, endless, launch
from models.pico.units import N_UNITS

N_BOOKS = 2
_ROWS = 1100
_ITERATIONS = 12
_SAMPLE = 200_000

Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def batch_of(speech: prep.Speech, utterances: np.ndarray, n_books: int) -> Batch:
    """Collate; return window, stay, codes, mask, x, padded to the longest utterance."""
    slices = [speech.steps(int(u)) for u in utterances]
    longest = max(s.stop - s.start for s in slices)
    shape = (len(slices), longest)
    window = np.zeros((*shape, 5), np.int64)
    stay = np.zeros(shape, np.int64)
    codes = np.full((*shape, n_books), ABSENT, np.int64)
    mask = np.zeros((*shape, 1), np.float32)
    x = np.zeros((*shape, PostNet.DIMS), np.float32)
    for row, s in enumerate(slices):
        n = s.stop - s.start
        window[row, :n], x[row, :n], mask[row, :n] = speech.window[s], speech.x[s], 1.0
        stay[row, :n] = align.stay_ids(speech.stay[s])
        if speech.codes is not None:
            codes[row, :n] = speech.codes[s][:, :n_books]
    window_t, stay_t, codes_t, mask_t, x_t = map(torch.from_numpy, (window, stay, codes, mask, x))
    return window_t, stay_t, codes_t, mask_t, x_t


def drop_books(codes: Tensor, keep: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Hide the last books of each utterance: `keep[k]` is the chance that k books stay."""
    weights = torch.tensor(keep)
    kept = torch.multinomial(weights, len(codes), replacement=True, generator=generator)
    hidden = torch.arange(codes.shape[-1]) >= kept[:, None, None]
    return torch.where(hidden, ABSENT, codes)


def swap_codes(codes: Tensor, highest: float, generator: torch.Generator) -> Tensor:
    """Replace codes by random ones at a rate drawn for each utterance from 0 to `highest`."""
    rate = torch.rand(len(codes), 1, 1, generator=generator) * highest
    hit = (torch.rand(codes.shape, generator=generator) < rate) & (codes != ABSENT)
    other = torch.randint(0, N_CODES, codes.shape, generator=generator)
    return torch.where(hit, other, codes)


def unexplained(net: PostNet, speech: prep.Speech, n_books: int) -> float:
    """Return the share of variance that the net misses on the validation utterances."""
    missed = total = 0.0
    scale = float(speech.x[:50_000].astype(np.float32).var(0).sum())
    net.eval()
    with torch.no_grad():
        for part in batches_of(list(range(prep.N_VALIDATION)), 40):
            window, stay, codes, mask, x = batch_of(speech, np.array(part), net.C.shape[0])
            codes[..., n_books:] = ABSENT
            error = (net(window, stay, codes, mask) - x) * mask
            missed += float(error.square().sum())
            total += float(mask.sum())
    net.train()
    return missed / total / scale


def _job(rank: int, name: str, budget_s: float, peak: float, keep: tuple[float, ...]) -> Job:
    shifts = [prep.load(shift) for shift in prep.SHIFTS]
    net = PostNet(vocab=N_UNITS, n_books=N_BOOKS)
    before = WORK / ("coded.pt" if name == "post" else "none")
    scale = float(shifts[0].x[:50_000].astype(np.float32).var(0).sum())
    if before.exists():
        net.load_state_dict(torch.load(before, weights_only=True))
    else:
        net.sc.fill_((scale / PostNet.DIMS) ** 0.5)
    feeds = []
    for shift, speech in enumerate(shifts):
        training = speech.training()
        lengths = np.diff(speech.start)[training]
        feeds.append((training, endless(lengths, _ROWS, rank, SEED + shift)))
    generator = torch.Generator().manual_seed(SEED + rank)

    def loss(step: int) -> tuple[Tensor, dict[str, float]]:
        which = step % len(shifts)
        training, feed = feeds[which]
        window, stay, codes, mask, x = batch_of(shifts[which], training[next(feed)], N_BOOKS)
        codes = swap_codes(drop_books(codes, keep, generator), 0.1, generator)
        error = ((net(window, stay, codes, mask) - x) * mask).square().sum()
        share = error / mask.sum() / scale
        return share, {"unexplained": float(share.detach())}

    def validate() -> str:
        shares = [unexplained(net, shifts[0], n) for n in range(N_BOOKS + 1)]
        return "validation unexplained by books 0.. " + " ".join(f"{s:.4f}" for s in shares)

    return Job(name=name, module=net, loss=loss, budget_s=budget_s, peak=peak, weight_decay=0.01,
               validate=validate)  # fmt: skip


def run_predictor(minutes: float) -> None:
    """Train the text-only predictor; write training-work/predictor.pt."""
    nothing = (1.0,) + (0.0,) * N_BOOKS
    launch(partial(_job, name="predictor", budget_s=60 * minutes, peak=2e-3, keep=nothing))


def run_post(minutes: float) -> None:
    """Train the post-net on from the predictor; write training-work/post.pt."""
    keep = (0.08,) + (0.07,) * (N_BOOKS - 1) + (1.0 - 0.08 - 0.07 * (N_BOOKS - 1),)
    launch(partial(_job, name="post", budget_s=60 * minutes, peak=1.5e-3, keep=keep))


def nearest(x: Tensor, book: Tensor) -> Tensor:
    """Return the index of the closest entry of `book` (K, D) for each row of x (N, D)."""
    offset = 0.5 * book.square().sum(1)
    return torch.cat([(part @ book.T - offset).argmax(1) for part in torch.split(x, 8192)])


def k_means(x: Tensor, n_entries: int, generator: torch.Generator) -> Tensor:
    """Return `n_entries` centroids (K, D) of x (N, D); empty cells restart at random rows."""
    book = x[torch.randperm(len(x), generator=generator)[:n_entries]].clone()
    for _ in range(_ITERATIONS):
        code = nearest(x, book)
        counts = torch.bincount(code, minlength=n_entries)
        sums = torch.zeros_like(book).index_add_(0, code, x)
        book = sums / counts.clamp(min=1)[:, None]
        empty = (counts == 0).nonzero()[:, 0]
        book[empty] = x[torch.randint(len(x), (len(empty),), generator=generator)]
    return book


def residuals(net: PostNet, speech: prep.Speech, show: Callable[[int], None]) -> np.ndarray:
    """Return x minus the text-only guess, (n_steps, 128) float32, of all utterances."""
    out = np.empty(speech.x.shape, np.float32)
    order = np.argsort(np.diff(speech.start), kind="stable")
    with torch.no_grad():
        for part in batches_of(list(order), 48):
            window, stay, codes, mask, x = batch_of(speech, np.array(part), N_BOOKS)
            left = (x - net(window, stay, torch.full_like(codes, ABSENT), mask)).numpy()
            for row, utterance in enumerate(part):
                s = speech.steps(int(utterance))
                out[s] = left[row, : s.stop - s.start]
            show(len(part))
    return out


def run_codes() -> None:
    """Fit the books, code all speech, and put the books into the net (coded.pt)."""
    net = PostNet(vocab=N_UNITS, n_books=N_BOOKS)
    net.load_state_dict(torch.load(WORK / "predictor.pt", weights_only=True))
    net.eval()
    generator = torch.Generator().manual_seed(SEED)
    for shift in prep.SHIFTS:
        speech = prep.load(shift)
        with progress() as bar:
            task = bar.add_task(f"residuals, shift {shift}", total=len(speech), note="")
            left = torch.from_numpy(residuals(net, speech, lambda n: bar.advance(task, n)))  # noqa: B023
        if shift == prep.SHIFTS[0]:
            _fit_books(net, left, generator)
        codes = np.empty((len(left), N_BOOKS), np.int16)
        for book in range(N_BOOKS):
            code = nearest(left, net.C[book, :N_CODES])
            codes[:, book] = code.numpy()
            left = left - net.C[book][code]
        np.save(prep.folder(shift) / "codes.npy", codes)
    # The input scale of centroids stays that of x; residuals are a few times smaller, which only
    # makes their input weights grow.
    torch.save(net.state_dict(), WORK / "coded.pt")


def _fit_books(net: PostNet, left: Tensor, generator: torch.Generator) -> None:
    sample = left[torch.randperm(len(left), generator=generator)[:_SAMPLE]]
    total = sample.square().sum()
    for book in range(N_BOOKS):
        net.C[book, :N_CODES] = k_means(sample, N_CODES, generator)
        sample = sample - net.C[book][nearest(sample, net.C[book, :N_CODES])]
        console.print(
            f"book {book}: {float(sample.square().sum() / total):.4f} of the residual left"
        )
