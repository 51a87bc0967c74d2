"""Shape of a HiFT, as HyperPyYAML files of the CosyVoice kind state it.

Source: CosyVoice, `hifigan/generator.py` (Apache-2.0).
"""

from __future__ import annotations

from models.checkpoint import Config
from models.codecs.hift import HiftConfig
from models.errors import WeightError
from models.hyperpyyaml import part_of


def read_hift(config: Config) -> HiftConfig:
    """The shape that a file states under `hift`. Raises: `WeightError`, it names the key."""
    config = part_of(config, "hift", "HiFTGenerator")
    predictor = part_of(config, "f0_predictor", "ConvRNNF0Predictor")
    transform = config.part("istft_params")
    predictor.expect("num_class", 1)
    predictor.expect("in_channels", config.integer("in_channels"))
    rate_hz = config.integer("sampling_rate")
    return HiftConfig(
        sample_rate_hz=rate_hz,
        n_mels=config.integer("in_channels"),
        n_channels=config.integer("base_channels"),
        strides=config.integers("upsample_rates"),
        kernels=config.integers("upsample_kernel_sizes"),
        n_fft=transform.integer("n_fft"),
        n_hop=transform.integer("hop_len"),
        residual_kernels=config.integers("resblock_kernel_sizes"),
        residual_dilations=_dilations(config, "resblock_dilation_sizes"),
        source_kernels=config.integers("source_resblock_kernel_sizes"),
        source_dilations=_dilations(config, "source_resblock_dilation_sizes"),
        n_f0_channels=predictor.integer("cond_channels"),
        n_harmonics=config.integer("nb_harmonics"),
        sine_gain=config.number("nsf_alpha"),
        noise_gain=config.number("nsf_sigma"),
        voiced_hz=config.number("nsf_voiced_threshold"),
        # Source: `HiFTGenerator.__init__`, which takes this form at all rates but 22.05 kHz.
        is_interpolated=rate_hz != 22_050,
        slope=config.number("lrelu_slope"),
        limit=config.number("audio_limit"),
    )


def _dilations(config: Config, key: str) -> tuple[tuple[int, ...], ...]:
    value = config.optional(key)
    if not isinstance(value, list) or not value:
        raise WeightError(f"{config.source} does not state {config.prefix}{key} as lists")
    rows = Config({str(idx): row for idx, row in enumerate(value)}, config.source, f"{key}.")
    return tuple(rows.integers(idx) for idx in rows.values)
