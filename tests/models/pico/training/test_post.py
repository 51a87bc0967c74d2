"""Post-net context, book dropping and residual k-means."""

import torch

from models.pico.training import post
from models.pico.training.common import ABSENT
from models.pico.training.nets import PostNet


def net() -> PostNet:
    torch.manual_seed(0)
    made = PostNet(vocab=20, n_books=2).eval()
    with torch.no_grad():
        made.C[:, :1024].normal_()
        for block in made.blocks:
            block.b.weight.normal_(std=0.1)
    return made


def test_context_is_eight_steps_left_and_two_right() -> None:
    made, n = net(), 24
    window, stay = torch.randint(0, 20, (1, n, 5)), torch.zeros(1, n, dtype=torch.long)
    codes, mask = torch.randint(0, 1024, (1, n, 2)), torch.ones(1, n, 1)
    before = made(window, stay, codes, mask)
    codes[0, 12] = (codes[0, 12] + 1) % 1024
    changed = (made(window, stay, codes, mask) - before).abs().amax(-1)[0] > 0
    assert changed.nonzero()[:, 0].tolist() == list(range(10, 21))


def test_padding_does_not_leak_into_an_utterance() -> None:
    made = net()
    window, stay = torch.randint(0, 20, (1, 9, 5)), torch.zeros(1, 9, dtype=torch.long)
    codes = torch.randint(0, 1024, (1, 9, 2))
    mask = torch.ones(1, 9, 1)
    mask[:, 6:] = 0
    padded = made(window, stay, codes, mask)[:, :6]
    alone = made(window[:, :6], stay[:, :6], codes[:, :6], mask[:, :6])
    # The same sums in another order of fp32.
    assert float((padded - alone).detach().abs().max()) < 1e-5


def test_dropping_hides_the_last_books_first() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.zeros(60, 4, 2, dtype=torch.long)
    kept = post.drop_books(codes, (0.3, 0.3, 0.4), generator)
    hidden = (kept == ABSENT).all(1)
    assert {tuple(row.tolist()) for row in hidden} == {(True, True), (False, True), (False, False)}


def test_k_means_finds_well_parted_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    x = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=generator)
    left = 9.0
    for seed in range(5):
        book = post.k_means(x, 3, torch.Generator().manual_seed(seed))
        left = min(left, float((x - book[post.nearest(x, book)]).square().sum(1).mean()))
    # 2 dimensions of variance 0.01 stay inside a cluster.
    assert left < 0.03
