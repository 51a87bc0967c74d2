"""ESPnet's DAC, as OpusLM speaks through it: an LSTM between convolutions that read the future.

It shares its name with DAC and little else. Codes pass a convolution, an LSTM and upsampling
blocks. The LSTM's state is carried over the frames whose context is complete, and what it gave for
the last frames is kept for the blocks' context; so a chunk costs its own frames and a few more, and
every pattern of chunks equals whole decoding up to rounding. Encoding takes a whole signal.

Source: ESPnet 202611, `espnet2/gan_codec/dac/dac.py` and `shared/`; keys as in its checkpoints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from models.base import Decoded
from models.checkpoint import Config, fold_weight_norm, read_torch_file, read_yaml
from models.codecs.seanet import SeanetConfig, SeanetDecoder, SeanetEncoder
from models.codecs.snake import as_channels_last
from models.codecs.windowed import CLOCK, cut
from models.errors import WeightError
from models.layers.conv import ENDLESS, Span
from models.spec import CodecSpec, StateSpec
from models.weights import load_weights

CHUNK_FRAMES: Final = (4, 8, 16, 32)
HIDDEN: Final = "lstm_hidden"
CELL: Final = "lstm_cell"
OUTPUTS: Final = "lstm_outputs"
_PREFIX: Final = "codec.generator."
_CONV: Final = ".conv.conv."
_UPSAMPLE: Final = ".convtr.convtr."
_TRAINING: Final = re.compile(
    r"codec\.(discriminator|mel_loss)\..*|.*\._codebook\.(inited|cluster_size|embed_avg)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EspnetDacConfig:
    """Shape of a checkpoint, from its `config.yaml`.

    Args:
        sample_rate_hz: of the PCM.
        seanet: of the encoder and the decoder.
        n_codebooks: codes in a frame.
        n_codes: in each codebook.
        code_dim: of a codebook entry.
    """

    sample_rate_hz: int
    seanet: SeanetConfig
    n_codebooks: int
    n_codes: int
    code_dim: int

    @property
    def samples_per_frame(self) -> int:
        """PCM samples of a frame."""
        return math.prod(self.seanet.strides)

    @property
    def lookahead(self) -> int:
        """Frames that must be known beyond those that are given."""
        return self.seanet.edge + self.seanet.reach


def read_espnet_dac_config(folder: Path) -> EspnetDacConfig:
    """The shape in `config.yaml` of a codec's folder. Raises: `WeightError`, it names the key."""
    config = read_yaml(folder / "config.yaml")
    config.expect("codec", "dac")
    part = config.part("codec_conf")
    generator = part.part("generator_params")
    for key, value in (
        ("encdec_channels", 1),
        ("encdec_activation", "Snake"),
        ("encdec_causal", False),
        ("encdec_pad_mode", "reflect"),
        ("encdec_true_skip", False),
        ("decoder_trim_right_ratio", 1.0),
        ("decoder_final_activation", None),
    ):
        generator.expect(key, value)
    return EspnetDacConfig(
        sample_rate_hz=part.integer("sampling_rate"),
        seanet=_seanet_config(generator),
        n_codebooks=generator.integer("quantizer_n_q"),
        n_codes=generator.integer("quantizer_bins"),
        code_dim=generator.integer("codebook_dim"),
    )


def _seanet_config(generator: Config) -> SeanetConfig:
    read = SeanetConfig(
        latent=generator.integer("hidden_dim"),
        n_filters=generator.integer("encdec_n_filters"),
        strides=generator.integers("encdec_ratios"),
        kernel=generator.integer("encdec_kernel_size"),
        last_kernel=generator.integer("encdec_last_kernel_size"),
        residual_kernel=generator.integer("encdec_residual_kernel_size"),
        n_residual=generator.integer("encdec_n_residual_layers"),
        dilation_base=generator.integer("encdec_dilation_base"),
        compress=generator.integer("encdec_compress"),
        n_lstm_layers=generator.integer("encdec_lstm"),
    )
    where = f"{generator.source}: {generator.prefix}"
    if read.n_lstm_layers < 1:
        raise WeightError(f"{where}encdec_lstm is {read.n_lstm_layers}, must be 1 or more")
    if any(n % 2 == 0 for n in (read.kernel, read.last_kernel, read.residual_kernel)):
        raise WeightError(f"{where}encdec_*kernel_size: one is even, and only odd ones are known")
    return read


def espnet_dac_codec(
    config: EspnetDacConfig,
    chunk_frames: tuple[int, ...] = CHUNK_FRAMES,
    *,
    max_batch: int = 16,
) -> CodecSpec:
    """The codec's side of a spec.

    Args:
        config: of the checkpoint.
        chunk_frames: sizes of calls, ascending; up to `lookahead` of them, first calls give none.
        max_batch: most streams in a call.
    """
    seanet = config.seanet
    carried = (seanet.n_lstm_layers, seanet.width)
    return CodecSpec(
        chunk_frames=chunk_frames,
        left_context_frames=2 * seanet.edge,
        lookahead_frames=config.lookahead,
        state=(
            CLOCK,
            StateSpec(name=HIDDEN, shape=carried),
            StateSpec(name=CELL, shape=carried),
            StateSpec(name=OUTPUTS, shape=(seanet.width, 2 * seanet.reach)),
        ),
        max_batch=max_batch,
    )


class EspnetDac(nn.Module):
    """The codec.

    Args:
        config: shape of the weights.
    """

    def __init__(self, config: EspnetDacConfig) -> None:
        super().__init__()
        self.config = config
        self.samples_per_frame = config.samples_per_frame
        self.encoder = SeanetEncoder(config.seanet)
        self.quantizer = _Quantizer(config)
        self.decoder = SeanetDecoder(config.seanet)

    def decode(
        self, frames: Tensor, n_valid: Tensor, state: dict[str, Tensor], is_last: Tensor
    ) -> Decoded:
        """One chunk of each stream; see `models.base.SpeechModel.decode`.

        Args:
            frames: `(B, 2 * edge + F, Q)`; -1 from before the start.
            n_valid: `(B,)`.
            state: as `espnet_dac_codec` lists it.
            is_last: `(B,)`.
        """
        edge, reach = self.config.seanet.edge, self.config.seanet.reach
        n_new = frames.shape[1] - 2 * edge
        n_before = state[CLOCK.name][:, 0]
        n_after = n_before + n_valid
        end = torch.where(is_last, n_after, ENDLESS)
        span = Span(start=n_before - 2 * edge, end=end)
        latents = self.quantizer.decode(frames.clamp(min=0))
        x = self.decoder.enter(as_channels_last(latents), span)
        heard, after = self._recur(x[:, :, edge:], n_before - edge, state)
        # The blocks' window: outputs that were kept, those of this call, and those held back.
        window = torch.cat([state[OUTPUTS], heard], dim=2)
        start = n_before - edge - 2 * reach
        pcm = self.decoder.leave(as_channels_last(window), Span(start=start, end=end))
        first = (n_before - self.config.lookahead).clamp(min=0)
        last = torch.where(is_last, n_after, (n_after - self.config.lookahead).clamp(min=0))
        n_most = n_new + self.config.lookahead
        given, n_samples = cut(pcm, start, first, last, n_most, self.samples_per_frame)
        return Decoded(
            pcm=given.clamp(-1.0, 1.0),
            n_samples=n_samples,
            state={
                CLOCK.name: n_after.unsqueeze(1),
                OUTPUTS: window[:, :, n_new : n_new + 2 * reach],
                **after,
            },
        )

    def _recur(
        self, x: Tensor, start: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The LSTM over `x` `(B, width, n)`, which begins at frame `start` `(B,)`.

        The last `edge` frames lack context, unless the utterance ends here: they leave no trace.
        """
        edge = self.config.seanet.edge
        rows = x.permute(2, 0, 1)
        carried = kept = (_steps_first(state[HIDDEN]), _steps_first(state[CELL]))
        outputs = []
        n_whole = len(rows) - edge
        # Frames from before the start come first, and no more than `edge` of them: rows of a batch
        # begin at different times, so these go one by one and leave no state.
        single = range(edge + 1) if _may_begin(start) else ()
        for first, end in pairwise(sorted({0, *single, n_whole, len(rows)})):
            heard, (hidden, cell) = self.decoder.lstm(rows[first:end], carried)
            is_within = (start + end > 0).view(1, -1, 1)
            carried = (hidden * is_within, cell * is_within)
            outputs.append(heard)
            kept = carried if end == n_whole else kept
        after = {HIDDEN: kept[0].transpose(0, 1), CELL: kept[1].transpose(0, 1)}
        return torch.cat(outputs).permute(1, 2, 0), after

    def encode(self, pcm: Tensor) -> Tensor:
        """Codes `(B, T, Q)` of whole signals `(B, n)`; the end is padded to a whole frame."""
        x = as_channels_last(pcm.unsqueeze(1))
        return self.quantizer.encode(self.encoder(x)[:, :, 0])


class _Level(nn.Module):
    """A codebook, and the way in and out where its entries have a width of their own."""

    def __init__(self, config: EspnetDacConfig) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(config.n_codes, config.code_dim))
        self.project_in: nn.Module = nn.Identity()
        self.project_out: nn.Module = nn.Identity()
        latent = config.seanet.latent
        if config.code_dim != latent:
            self.project_in = nn.Linear(latent, config.code_dim)
            self.project_out = nn.Linear(config.code_dim, latent)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes `(B, T)` to `(B, T, latent)`."""
        entries: Tensor = self.project_out(self.embed[codes])
        return entries

    def encode(self, x: Tensor) -> Tensor:
        """The nearest codes `(B, T)` of `(B, T, latent)`."""
        inner = self.project_in(x)
        return torch.cdist(inner, self.embed.expand(len(x), -1, -1)).argmin(dim=2)


class _Quantizer(nn.Module):
    def __init__(self, config: EspnetDacConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Level(config) for _ in range(config.n_codebooks))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes `(B, T, Q)` to the sum over levels `(B, latent, T)`."""
        x = codes.new_zeros((), dtype=torch.float32)
        for idx, level in enumerate(self._levels()):
            x = x + level.decode(codes[:, :, idx])
        return x.transpose(1, 2)

    def encode(self, x: Tensor) -> Tensor:
        """`(B, latent, T)` to codes `(B, T, Q)`, each level coding what those before left."""
        left, codes = x.transpose(1, 2), []
        for level in self._levels():
            nearest = level.encode(left)
            left = left - level.decode(nearest)
            codes.append(nearest)
        return torch.stack(codes, dim=2)

    def _levels(self) -> list[_Level]:
        return [level for level in self.layers if isinstance(level, _Level)]


def load_espnet_dac(folder: Path) -> EspnetDac:
    """The codec of a folder (`config.yaml` and one `.pth`, whatever its name), on the CPU.

    Raises:
        WeightError: a file is missing or damaged, or does not fit; keys are named.
    """
    files = sorted(folder.glob("*.pth"))
    if len(files) != 1:
        raise WeightError(f"{folder} has {len(files)} files *.pth, and must have one: the codec's")
    model = EspnetDac(read_espnet_dac_config(folder))
    held = read_torch_file(files[0])
    load_weights(
        model,
        codec_part(held),
        source=f"{folder.name}/{files[0].name}",
        names={**_names_by_layer(model), **{_renamed(_folded(key)): key for key in held}},
    )
    return model.requires_grad_(False)


def codec_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the codec uses of a checkpoint, named as here; weight norm folded, in both spellings."""
    own = {key: tensor for key, tensor in tensors.items() if not _TRAINING.fullmatch(key)}
    return {_renamed(key): tensor for key, tensor in fold_weight_norm(own).items()}


def _folded(key: str) -> str:
    """What a key is called when weight norm has been folded; gains stand aside."""
    for direction in ("weight_v", "parametrizations.weight.original1"):
        if key.endswith(f".{direction}"):
            return f"{key.removesuffix(direction)}weight"
    return key


def _renamed(key: str) -> str:
    name = key.removeprefix(_PREFIX)
    for theirs, ours in (
        (_CONV, "."),
        (_UPSAMPLE, "."),
        ("quantizer.vq.", "quantizer."),
        ("._codebook.", "."),
    ):
        name = name.replace(theirs, ours)
    return name


def _names_by_layer(model: EspnetDac) -> dict[str, str]:
    """Our keys as a file would have them, without weight norm: for those that it lacks."""
    names = {}
    for layer_name, layer in model.named_modules():
        for key, _ in layer.named_parameters(recurse=False):
            dot = "."
            if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d):
                dot = _CONV if isinstance(layer, nn.Conv1d) else _UPSAMPLE
            elif isinstance(layer, _Level):
                dot = "._codebook."
            place = layer_name.replace("quantizer.", "quantizer.vq.", 1)
            names[f"{layer_name}.{key}"] = f"{_PREFIX}{place}{dot}{key}"
    return names


def _may_begin(start: Tensor) -> bool:
    """Whether a row may have frames from before its start; on a CPU that is cheap to know."""
    is_opaque = start.device.type != "cpu" or torch.compiler.is_compiling()
    return is_opaque or bool((start < 0).any())


def _steps_first(state: Tensor) -> Tensor:
    """`(B, layers, size)` as an LSTM takes it."""
    return state.transpose(0, 1).contiguous()
