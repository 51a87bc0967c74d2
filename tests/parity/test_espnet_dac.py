"""ESPnet's DAC against its own class, on random weights in the layout of its checkpoints.

Tolerance 1e-5 on PCM of about 0.3: float32 in another order of sums. Codes must be the same: random
codebooks lie far apart.
"""

from __future__ import annotations

import re

import pytest
import torch
import yaml

from models.codecs.causal import n_bytes
from models.codecs.espnet_dac import (
    EspnetDac,
    EspnetDacConfig,
    espnet_dac_codec,
    load_espnet_dac,
    read_espnet_dac_config,
)
from models.codecs.seanet import SeanetConfig
from models.errors import WeightError
from tests.parity.oracle import ask

N_FRAMES = 47
LENGTHS = (1, 2, 3, 4, 6, 7, 8, 11, 12, N_FRAMES)
CUTS = (1, 7, 319, 320, 321, 5000, 9600)
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "codes": torch.randint(0, 64, (2, N_FRAMES, 8), generator=generator),
        "pcm": 0.3 * torch.randn(2, CUTS[-1], generator=generator),
        "lengths": torch.tensor(LENGTHS),
        "cuts": torch.tensor(CUTS),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("espnet_dac")


@pytest.fixture(scope="module")
def reference(folder, inputs) -> dict[str, torch.Tensor]:
    return ask("espnet_dac", folder, inputs, apart="espnet")


@pytest.fixture(scope="module")
def model(folder, reference) -> EspnetDac:
    return load_espnet_dac(folder / "codec")


class Streams:
    """Rows of a batch, decoded chunk by chunk."""

    def __init__(self, model: EspnetDac, codes: torch.Tensor) -> None:
        self.model, self.codes = model, codes
        self.spec = espnet_dac_codec(model.config)
        self.state = {
            one.name: torch.zeros(len(codes), *one.shape, dtype=getattr(torch, one.dtype))
            for one in self.spec.state
        }
        self.pcm = [torch.zeros(0) for _ in codes]
        self.n_done = [0] * len(codes)

    def push(self, size: int, n_valid: list[int], is_last: list[bool]) -> None:
        """One call: so many frames of each row, in a chunk of `size`."""
        context = self.spec.left_context_frames
        n_rows, _, n_codes = self.codes.shape
        frames = torch.zeros(n_rows, context + size, n_codes, dtype=torch.int64)
        for row, (n_done, n_new) in enumerate(zip(self.n_done, n_valid, strict=True)):
            past = torch.full((context, n_codes), -1)
            known = torch.cat([past, self.codes[row]])[n_done : n_done + context + n_new]
            frames[row, : len(known)] = known
        decoded = self.model.decode(
            frames, torch.tensor(n_valid), self.state, torch.tensor(is_last)
        )
        self.state = decoded.state
        for row, n_samples in enumerate(decoded.n_samples.tolist()):
            self.n_done[row] += n_valid[row]
            assert not decoded.pcm[row, n_samples:].any()
            self.pcm[row] = torch.cat([self.pcm[row], decoded.pcm[row, :n_samples]])


def stream(model: EspnetDac, codes: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """PCM `(B, n)`, in chunks of the given sizes, over and over."""
    streams, turn = Streams(model, codes), 0
    n_rows, n_frames = codes.shape[:2]
    while streams.n_done[0] < n_frames:
        size = sizes[turn % len(sizes)]
        n_valid = min(size, n_frames - streams.n_done[0])
        is_last = streams.n_done[0] + n_valid == n_frames
        streams.push(size, [n_valid] * n_rows, [is_last] * n_rows)
        turn += 1
    return torch.stack(streams.pcm)


@pytest.mark.parametrize("n_frames", LENGTHS)
def test_one_chunk_is_the_reference_s_decoding(model, inputs, reference, n_frames):
    expected = reference[f"pcm{n_frames}"].clamp(-1, 1)
    pcm = stream(model, inputs["codes"][:, :n_frames], [n_frames])
    assert expected.shape == (2, n_frames * 320)
    assert expected.std() > 0.05
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n_frames", LENGTHS)
@pytest.mark.parametrize("sizes", [[1], [2], [4, 8, 16], [3, 1], [7, 5], [32], [1, 9]])
def test_chunks_are_the_reference_s_decoding(model, inputs, reference, sizes, n_frames):
    """Of every pattern and every length: first frames are not lost, tails are flushed."""
    pcm = stream(model, inputs["codes"][:, :n_frames], sizes)
    expected = reference[f"pcm{n_frames}"].clamp(-1, 1)
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_where_nobody_may_look_at_times_it_is_the_same(model, inputs, reference, monkeypatch):
    """On a GPU the host does not know which rows begin, and takes care in every call."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    pcm = stream(model, inputs["codes"], [2, 8])
    expected = reference[f"pcm{N_FRAMES}"].clamp(-1, 1)
    torch.testing.assert_close(pcm, expected, atol=TOLERANCE, rtol=0)


def test_the_last_call_may_bring_no_frame(model, inputs, reference):
    streams = Streams(model, inputs["codes"][:1])
    for _ in range(N_FRAMES):
        streams.push(1, [1], [False])
    assert len(streams.pcm[0]) == (N_FRAMES - model.config.lookahead) * 320
    streams.push(1, [0], [True])
    expected = reference[f"pcm{N_FRAMES}"][0].clamp(-1, 1)
    torch.testing.assert_close(streams.pcm[0], expected, atol=TOLERANCE, rtol=0)


def test_no_frames_are_no_samples(model, inputs):
    streams = Streams(model, inputs["codes"][:1])
    streams.push(4, [0], [True])
    assert len(streams.pcm[0]) == 0


def test_rows_of_a_batch_do_not_touch(model, inputs, reference):
    """One begins while the other is under way, and ends while the other goes on."""
    streams = Streams(model, inputs["codes"])
    early, late = Streams(model, inputs["codes"][:1]), Streams(model, inputs["codes"][1:])
    early.push(4, [4], [False])
    early.push(2, [2], [False])
    streams.state = {name: torch.cat([early.state[name], late.state[name]]) for name in early.state}
    streams.n_done, streams.pcm[0] = [6, 0], early.pcm[0]
    streams.push(8, [8, 8], [False, False])
    streams.push(4, [3, 4], [True, False])
    later = Streams(model, inputs["codes"][1:])
    later.state = {name: tensor[1:] for name, tensor in streams.state.items()}
    later.n_done, later.pcm = [12], [streams.pcm[1]]
    later.push(64, [N_FRAMES - 12], [True])
    short = stream(model, inputs["codes"][:1, :17], [17])[0]
    torch.testing.assert_close(streams.pcm[0], short, atol=TOLERANCE, rtol=0)
    whole = reference[f"pcm{N_FRAMES}"][1].clamp(-1, 1)
    torch.testing.assert_close(later.pcm[0], whole, atol=TOLERANCE, rtol=0)


def test_the_look_ahead_is_real(model, inputs):
    """A code changes audio from seven frames before it on, and none earlier."""
    changed = inputs["codes"][:1].clone()
    changed[0, 30] = (changed[0, 30] + 7) % 64
    before = stream(model, inputs["codes"][:1], [N_FRAMES])[0]
    differs = (stream(model, changed, [N_FRAMES])[0] - before).abs() > 1e-7
    touched = differs.view(N_FRAMES, -1).any(dim=1).nonzero().flatten()
    assert model.config.lookahead == 7
    assert touched.min() == 30 - 7
    assert touched.max() == N_FRAMES - 1, "an LSTM does not forget so soon"


@pytest.mark.parametrize("n_samples", CUTS)
def test_encoding_gives_the_reference_s_codes(model, inputs, reference, n_samples):
    codes = model.encode(inputs["pcm"][:, :n_samples])
    assert codes.shape == (2, -(-n_samples // 320), 8)
    assert torch.equal(codes, reference[f"codes{n_samples}"])


def test_codebooks_may_have_a_width_of_their_own(folder, inputs, reference):
    narrow = load_espnet_dac(folder / "narrow")
    pcm = stream(narrow, inputs["codes"], [4, 8])
    torch.testing.assert_close(pcm, reference["narrow"].clamp(-1, 1), atol=TOLERANCE, rtol=0)
    assert torch.equal(narrow.encode(inputs["pcm"]), reference["narrow_codes"])


def test_both_spellings_of_weight_norm(folder, tmp_path, model, inputs):
    """Older training wrote `weight_g` and `weight_v`."""
    held = torch.load(folder / "codec/360epoch.pth", weights_only=True)
    stem = "parametrizations.weight.original"
    older = {
        k.replace(f"{stem}0", "weight_g").replace(f"{stem}1", "weight_v"): held[k] for k in held
    }
    assert older.keys() != held.keys()
    write(tmp_path, folder, older)
    pcm = stream(load_espnet_dac(tmp_path), inputs["codes"], [16])
    torch.testing.assert_close(pcm, stream(model, inputs["codes"], [16]), atol=TOLERANCE, rtol=0)


DECODER = "codec.generator.decoder"
BOOK = "codec.generator.quantizer.vq.layers.3._codebook"


@pytest.mark.parametrize(
    ("key", "tensor", "shown"),
    [
        (f"{DECODER}.model.1.lstm.bias_hh_l1", None, f"missing: {DECODER}.model.1.lstm.bias_hh_l1"),
        (f"{DECODER}.model.0.conv.conv.bias", None, f"missing: {DECODER}.model.0.conv.conv.bias"),
        (
            f"{DECODER}.model.3.convtr.convtr.bias",
            None,
            f"missing: {DECODER}.model.3.convtr.convtr.bias",
        ),
        (f"{BOOK}.embed", None, f"missing: {BOOK}.embed"),
        (f"{BOOK}.embed", torch.ones(3), f"unfit: {BOOK}.embed is"),
        (f"{DECODER}.model.0.conv.conv.bias", torch.ones(1), "model.0.conv.conv.bias is"),
        (
            "codec.generator.encoder.model.99.alpha",
            torch.ones(1),
            "unexpected: codec.generator",
        ),
        (f"{DECODER}.model.2.alpha", torch.ones(3), f"unfit: {DECODER}.model.2.alpha"),
        ("codec.other", torch.ones(1), "unexpected: codec.other"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, reference, tmp_path, key, tensor, shown):
    held = torch.load(folder / "codec/360epoch.pth", weights_only=True)
    held.pop(key, None)
    if tensor is not None:
        held[key] = tensor
    write(tmp_path, folder, held)
    with pytest.raises(WeightError, match=re.escape(shown)):
        load_espnet_dac(tmp_path)


def test_which_file_holds_the_weights_is_clear(folder, reference, tmp_path):
    write(tmp_path, folder, {"a": torch.ones(1)})
    (tmp_path / "two.pth").touch()
    with pytest.raises(WeightError, match=r"has 2 files \*\.pth"):
        load_espnet_dac(tmp_path)


NUMBERS = (
    "hidden_dim",
    "codebook_dim",
    "encdec_n_filters",
    "encdec_n_residual_layers",
    "encdec_ratios",
    "encdec_kernel_size",
    "encdec_residual_kernel_size",
    "encdec_last_kernel_size",
    "encdec_dilation_base",
    "encdec_compress",
    "encdec_lstm",
    "quantizer_n_q",
    "quantizer_bins",
)


@pytest.mark.parametrize("key", NUMBERS)
def test_a_config_without_a_number_is_refused(folder, reference, tmp_path, key):
    config = yaml.safe_load((folder / "codec/config.yaml").read_text())
    del config["codec_conf"]["generator_params"][key]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(WeightError, match=f"does not state codec_conf.generator_params.{key}"):
        read_espnet_dac_config(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encdec_causal", True),
        ("encdec_activation", "ELU"),
        ("encdec_pad_mode", "zero"),
        ("encdec_true_skip", True),
        ("decoder_final_activation", "Tanh"),
        ("encdec_lstm", 0),
        ("encdec_kernel_size", 6),
    ],
)
def test_another_kind_of_codec_is_refused(folder, reference, tmp_path, key, value):
    config = yaml.safe_load((folder / "codec/config.yaml").read_text())
    config["codec_conf"]["generator_params"][key] = value
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(WeightError, match=key.replace("_kernel", ".*kernel")):
        read_espnet_dac_config(tmp_path)


def write(folder, source, held) -> None:
    """A codec's folder with other weights."""
    torch.save(held, folder / "weights.pth")
    (folder / "config.yaml").write_text((source / "codec/config.yaml").read_text())


def test_a_stream_of_the_published_codec_remembers_25_kib():
    """Two LSTM layers, hidden and cell, and outputs for eight frames; 512 channels each."""
    published = EspnetDacConfig(
        sample_rate_hz=16_000,
        seanet=SeanetConfig(
            latent=512,
            n_filters=32,
            strides=(8, 5, 4, 2),
            kernel=7,
            last_kernel=7,
            residual_kernel=7,
            n_residual=3,
            dilation_base=2,
            compress=2,
            n_lstm_layers=2,
        ),
        n_codebooks=8,
        n_codes=1024,
        code_dim=512,
    )
    spec = espnet_dac_codec(published)
    assert spec.lookahead_frames == 7
    assert n_bytes(spec.state) == 8 + (2 * 2 + 8) * 512 * 4
