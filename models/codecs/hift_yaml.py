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
    predictor.expect("in_channels", config.count("in_channels"))
    rate_hz = config.count("sampling_rate")
    strides = config.integers("upsample_rates")
    kernels = config.integers("upsample_kernel_sizes")
    residual, source = (_blocks(config, name) for name in ("resblock", "source_resblock"))
    if not len(strides) == len(kernels) == len(source):
        message = "upsample_rates, upsample_kernel_sizes and source_resblock_kernel_sizes"
        raise WeightError(f"{config.source} has {config.prefix}{message} of different lengths")
    return HiftConfig(
        sample_rate_hz=rate_hz,
        n_mels=config.count("in_channels"),
        n_channels=config.count("base_channels"),
        strides=strides,
        kernels=kernels,
        n_fft=transform.count("n_fft"),
        n_hop=transform.count("hop_len"),
        residual_kernels=tuple(kernel for kernel, _ in residual),
        residual_dilations=tuple(dilations for _, dilations in residual),
        source_kernels=tuple(kernel for kernel, _ in source),
        source_dilations=tuple(dilations for _, dilations in source),
        n_f0_channels=predictor.count("cond_channels"),
        n_harmonics=config.count("nb_harmonics"),
        sine_gain=config.number("nsf_alpha"),
        noise_gain=config.number("nsf_sigma"),
        voiced_hz=config.number("nsf_voiced_threshold"),
        # Source: `HiFTGenerator.__init__`, which takes this form at all rates but 22.05 kHz.
        is_interpolated=rate_hz != 22_050,
        slope=config.number("lrelu_slope"),
        limit=config.number("audio_limit"),
    )


def _blocks(config: Config, name: str) -> list[tuple[int, tuple[int, ...]]]:
    """Residual blocks: the kernel of each, and the dilations within."""
    kernels = config.integers(f"{name}_kernel_sizes")
    dilations = _dilations(config, f"{name}_dilation_sizes")
    if len(kernels) != len(dilations):
        message = f"{name}_kernel_sizes and {name}_dilation_sizes of different lengths"
        raise WeightError(f"{config.source} has {config.prefix}{message}")
    return list(zip(kernels, dilations, strict=True))


def _dilations(config: Config, key: str) -> tuple[tuple[int, ...], ...]:
    value = config.optional(key)
    if not isinstance(value, list) or not value:
        raise WeightError(f"{config.source} does not state {config.prefix}{key} as lists")
    rows = Config({str(idx): row for idx, row in enumerate(value)}, config.source, f"{key}.")
    return tuple(rows.integers(idx) for idx in rows.values)
