"""GLM-4-Voice's detokenizer against CosyVoice's first classes, on random weights in its layout.

Tolerance 1e-4 on mel frames of about 1, as `test_flow`. The streaming reference is composed: those
classes, run on all tokens for each chunk as GLM-4-Voice's `flow_inference.py` does, with the noise,
the lengths and the fade that `models.codecs.block_flow` states; then our vocoder on all mel frames,
which `test_hift` holds to its class.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

from models.checkpoint import read_torch_file
from models.codecs.block_flow import BlockCodec, Given, make_block_flow
from models.errors import WeightError
from models.glm4_voice.decoder import load_decoder, read_decoder_config
from tests.models.glm4_voice.tiny import fresh, stream, window
from tests.parity.oracle import ask

LENGTHS = (1, 9, 10, 23, 40)
N_STREAMED = 53
"""Tokens of a stream that never loses sight of its beginning."""
TOLERANCE = 1e-4
WIDTH = 1764
"""Samples of a token: 22,050 Hz over 12.5 Hz."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("glm_flow")
    ask("glm_flow", made, apart="cosyvoice")
    return made


@pytest.fixture(scope="module")
def codec(folder) -> BlockCodec:
    return load_decoder(folder).eval()


@pytest.fixture(scope="module")
def tokens(codec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(codec.flow.config.n_tokens, (200,), generator=generator)


def frames_of(n_tokens: int) -> int:
    return ceil(n_tokens * 441 / 64)


@pytest.fixture(scope="module")
def batch(tokens) -> dict[str, torch.Tensor]:
    """Utterances of `LENGTHS` as one batch, by the reference's own interpolation and lengths."""
    generator = torch.Generator().manual_seed(3)
    n_frames = [int(n / 12.5 * 22050 / 256) for n in LENGTHS]
    n_most = max(n_frames) + 3
    made = {
        "tokens": torch.zeros(len(LENGTHS), 50, dtype=torch.int64),
        "source": torch.zeros(len(LENGTHS), n_most, dtype=torch.int64),
        "known": torch.zeros(len(LENGTHS), 80, n_most),
        "noise": torch.randn(len(LENGTHS), 80, n_most, generator=generator),
        "n_frames": torch.tensor(n_frames),
    }
    for row, (n, m) in enumerate(zip(LENGTHS, n_frames, strict=True)):
        whole = torch.arange(n, dtype=torch.float32).view(1, 1, -1)
        source = torch.nn.functional.interpolate(whole, size=m, mode="nearest")[0, 0].long()
        made["tokens"][row, :n] = tokens[:n]
        made["source"][row, :m] = source
        if row % 2:
            made["known"][row, :, : m // 2] = torch.randn(80, m // 2, generator=generator)
    return made


@pytest.fixture(scope="module")
def reference(folder, codec, tokens, batch) -> dict[str, torch.Tensor]:
    asked = {"all": tokens, "noise": codec.flow.noise}
    for row, (n, m) in enumerate(zip(LENGTHS, batch["n_frames"].tolist(), strict=True)):
        asked |= {
            f"tokens{row}": batch["tokens"][row, :n].clone(),
            f"source{row}": batch["source"][row, :m].clone(),
            f"known{row}": batch["known"][row, :, :m].clone(),
            f"noise{row}": batch["noise"][row, :, :m].clone(),
        }
    size = codec.spec.chunk_frames[0]
    asked["ends"] = torch.tensor([*range(0, N_STREAMED, size), N_STREAMED])
    return ask("glm_flow", folder, asked, apart="cosyvoice")


@pytest.mark.parametrize("row", range(len(LENGTHS)))
def test_encoder_regulator_and_flow_are_the_reference_s(codec, batch, reference, row):
    """In a batch of different lengths, some with frames that are known."""
    flow, n, lengths = codec.flow, LENGTHS[row], torch.tensor(LENGTHS)
    given = Given(noise=batch["noise"], known=batch["known"])
    with torch.inference_mode():
        rows = flow.encoder(flow.input_embedding(batch["tokens"]), lengths)
        mel = flow(batch["tokens"], lengths, batch["source"], batch["n_frames"], given)
    torch.testing.assert_close(rows[row, :n], reference[f"rows{row}"], atol=TOLERANCE, rtol=0)
    expected = reference[f"mel{row}"]
    assert expected.std() > 0.3
    n_frames = expected.shape[1]
    torch.testing.assert_close(mel[row, :, :n_frames], expected, atol=TOLERANCE, rtol=0)
    assert not mel[row, :, n_frames:].any()


def test_a_stream_within_its_window_is_the_reference_s_run_of_all_tokens(codec, tokens, reference):
    """Chunk after chunk, each with the mel frames before it known, and the overlap faded."""
    mel = reference["stream"]
    assert mel.shape[1] == frames_of(N_STREAMED)
    expected = sound_of(codec, mel)[: N_STREAMED * WIDTH]
    got = np.concatenate(stream(codec, tokens[:N_STREAMED]))
    assert len(got) == N_STREAMED * WIDTH
    assert expected.std() > 0.02
    # Mel frames agree to 1e-4; the vocoder's pitch adds up what they differ by.
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-4)


@torch.inference_mode()
def sound_of(codec: BlockCodec, mel: torch.Tensor) -> np.ndarray:
    """The vocoder on whole mel frames `(80, n)`."""
    hift = codec.hift
    state = {
        one.name: torch.zeros(1, *one.shape, dtype=getattr(torch, one.dtype)) for one in hift.states
    }
    out = hift.decode(mel[None], torch.tensor([mel.shape[1]]), state, torch.tensor([True]))
    return out.pcm[0, : int(out.n_samples[0])].numpy()


@pytest.mark.parametrize("n_tokens", [0, 1, 5, 8, 9, 19, 20, 21, 40, 64, 101])
def test_every_length_has_its_exact_samples(codec, tokens, n_tokens):
    pcm = stream(codec, tokens[:n_tokens])
    assert sum(map(len, pcm)) == n_tokens * WIDTH
    size = codec.spec.chunk_frames[0]
    if n_tokens > size:
        # Not less than is stated, and not a token more.
        ahead = len(pcm[0]) - (size - codec.spec.lookahead_frames) * WIDTH
        assert 0 <= ahead < WIDTH


@pytest.mark.parametrize("n_tokens", [20, 60])
def test_when_the_end_is_known_changes_nothing(codec, tokens, n_tokens):
    """With the last whole chunk, or only when all of it has been given."""
    early = np.concatenate(stream(codec, tokens[:n_tokens], is_end_known=True))
    late = np.concatenate(stream(codec, tokens[:n_tokens]))
    np.testing.assert_allclose(early, late, rtol=0, atol=TOLERANCE)


def test_joins_of_chunks_are_no_louder_than_the_sound(codec, tokens):
    """No jump between samples at a join is larger than those within chunks."""
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        # Held tokens and fast ones, as speech has them.
        drawn = torch.randint(200, (80,), generator=generator)
        pcm = stream(codec, tokens[drawn.repeat_interleave(1 + 2 * seed)][:80])
        jumps = np.abs(np.diff(np.concatenate(pcm)))
        joins = np.cumsum([len(one) for one in pcm])[:-1] - 1
        joins = joins[joins < len(jumps)]
        assert len(joins) >= 3
        assert jumps[joins].max() <= np.quantile(np.delete(jumps, joins), 0.9999)


def test_rows_of_a_batch_do_not_touch(codec, tokens):
    """At other times, of other lengths, one of them ending; each as it is alone."""
    state, frames, n_valid, is_last, alone = fresh(codec, 3), [], [], [], []
    for row, n_before in enumerate((0, 20, 60)):
        own, mine = fresh(codec), tokens[row * 30 :]
        with torch.inference_mode():
            for start in range(0, n_before, 20):
                part, n_new = window(codec, mine, start)
                own = codec.decode(part, torch.tensor([n_new]), own, torch.tensor([False])).state
            part, n_new = window(codec, mine, n_before)
            n_valid.append(4 if row == 1 else n_new)
            is_last.append(row == 1)
            last = torch.tensor(is_last[-1:])
            alone.append(codec.decode(part, torch.tensor(n_valid[-1:]), own, last))
        frames.append(part)
        for name, tensor in own.items():
            state[name][row] = tensor[0]
    with torch.inference_mode():
        both = codec.decode(torch.cat(frames), torch.tensor(n_valid), state, torch.tensor(is_last))
    for row, one in enumerate(alone):
        assert both.n_samples[row] == one.n_samples[0]
        torch.testing.assert_close(both.pcm[row], one.pcm[0], atol=TOLERANCE, rtol=0)


def test_noise_is_of_the_time_however_the_window_moves(codec, tokens):
    """So frames that are solved again are solved from what they were."""
    seen: list[torch.Tensor] = []
    handle = codec.flow.register_forward_pre_hook(lambda _, given: seen.append(given[4].noise[0]))
    try:
        stream(codec, tokens[:80], is_end_known=True)
    finally:
        handle.remove()
    for start, noise in zip(range(0, 80, 20), seen, strict=True):
        first = frames_of(max(start - codec.flow.config.context_tokens, 0))
        assert torch.equal(noise, codec.flow.noise[:, first : first + noise.shape[1]])


def test_the_vocoder_of_22_05_khz_steps_by_frames(folder):
    """`test_hift` holds both forms to their classes."""
    hift = read_decoder_config(folder)[1]
    assert hift.sample_rate_hz == 22_050
    assert not hift.is_interpolated


def test_a_long_stream_goes_on_with_a_state_of_one_size(codec, tokens):
    whole = np.concatenate(stream(codec, tokens.repeat(2)[:250]))
    assert len(whole) == 250 * WIDTH, "20 s"
    assert np.isfinite(whole).all()
    assert whole[-WIDTH * 100 :].std() > 0.02


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("block_size: 10", "", "does not state flow.encoder.block_size"),
        ("channels: [16, 16]", "channels: [16, 24]", "flow.decoder.estimator.channels"),
        ("BlockConformerEncoder", "ConformerEncoder", "BlockConformerEncoder is known"),
        ("'euler'", "'heun'", "solver = 'heun'"),
        ("resblock_kernel_sizes: [3, 7, 11]", "", "does not state hift.resblock_kernel_sizes"),
    ],
)
def test_a_config_of_something_else_names_the_key(folder, tmp_path, old, new, shown):
    text = (folder / "config.yaml").read_text()
    assert old in text
    (tmp_path / "config.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(WeightError, match=shown):
        read_decoder_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        ("encoder_proj.bias", None, "missing: encoder_proj.bias"),
        ("length_regulator.model.1.bias", torch.zeros(3), "unfit: length_regulator.model.1.bias"),
        ("decoder.estimator.more", torch.zeros(3), "unexpected: decoder.estimator.more"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, key, tensor, shown):
    held = read_torch_file(folder / "flow.pt")
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    with pytest.raises(WeightError, match=shown):
        make_block_flow(read_decoder_config(folder)[0], held, source="flow.pt")
