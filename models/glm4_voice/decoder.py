"""The detokenizer's folder: `config.yaml` (HyperPyYAML), `flow.pt`, `hift.pt`.

Source: zai-org/glm-4-voice-decoder, whose `config.yaml` names classes of zai-org/GLM-4-Voice,
`cosyvoice/` (Apache-2.0). They are names here: nothing of them is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from models.checkpoint import Config, read_torch_file
from models.codecs.block_conformer import BlockConformerConfig
from models.codecs.block_flow import BlockCodec, BlockFlowConfig, make_block_flow
from models.codecs.hift import HiftConfig, make_hift
from models.codecs.unet import UnetConfig
from models.errors import WeightError
from models.hyperpyyaml import class_of, read_hyperpyyaml

CONFIG: Final = "config.yaml"
FLOW, HIFT = "flow.pt", "hift.pt"
N_STEPS: Final = 10
"""Of the solver: no file states it. Source: `cosyvoice/flow/flow.py`, `inference`."""


def load_decoder(folder: Path) -> BlockCodec:
    """The detokenizer, on the CPU in float32. Raises: `WeightError`."""
    flow_config, hift_config = read_decoder_config(folder)
    flow = make_block_flow(flow_config, read_torch_file(folder / FLOW), source=FLOW)
    return BlockCodec(flow, make_hift(hift_config, read_torch_file(folder / HIFT), source=HIFT))


def read_decoder_config(folder: Path) -> tuple[BlockFlowConfig, HiftConfig]:
    """The shapes that `config.yaml` states. Raises: `WeightError`, it names the key."""
    config = read_hyperpyyaml(folder / CONFIG)
    flow = _part(config, "flow", "MaskedDiffWithXvec")
    n_mels = flow.integer("output_size")
    regulator = _part(flow, "length_regulator", "InterpolateRegulator")
    ratios = regulator.integers("sampling_ratios")
    regulator.expect("channels", n_mels)
    decoder = _part(flow, "decoder", "ConditionalCFM")
    solver = decoder.part("cfm_params").part("content")
    solver.expect("solver", "euler")
    solver.expect("t_scheduler", "cosine")
    estimator, n_levels = _estimator(_part(decoder, "estimator", "ConditionalDecoder"), n_mels)
    return (
        BlockFlowConfig(
            n_tokens=flow.integer("vocab_size"),
            token_rate_hz=flow.number("input_frame_rate"),
            speaker_dim=flow.integer("spk_embed_dim"),
            encoder=_encoder(_part(flow, "encoder", "BlockConformerEncoder")),
            n_smooth=len(ratios),
            estimator=estimator,
            n_levels=n_levels,
            n_steps=N_STEPS,
            guidance=solver.number("inference_cfg_rate"),
        ),
        _hift(_part(config, "hift", "HiFTGenerator"), n_mels),
    )


def _part(config: Config, key: str, name: str) -> Config:
    """What a class is made with. Raises: `WeightError`: it is another class."""
    part = config.part(key)
    if class_of(part) != name:
        raise WeightError(
            f"{config.source} has {config.prefix}{key} of {class_of(part) or 'no class'!r}, "
            f"must be {name}: nothing else is known here"
        )
    return part


def _encoder(config: Config) -> BlockConformerConfig:
    for key, value in (
        ("normalize_before", True),
        ("input_layer", "linear"),
        ("pos_enc_layer_type", "rel_pos_espnet"),
        ("selfattention_layer_type", "block_rel_selfattn"),
        ("use_cnn_module", False),
        ("macaron_style", False),
    ):
        config.expect(key, value)
    return BlockConformerConfig(
        n_in=config.integer("input_size"),
        size=config.integer("output_size"),
        n_heads=config.integer("attention_heads"),
        inner=config.integer("linear_units"),
        n_layers=config.integer("num_blocks"),
        block_tokens=config.integer("block_size"),
    )


def _estimator(config: Config, n_mels: int) -> tuple[UnetConfig, int]:
    """Its shape, and the levels of the U."""
    channels = config.integers("channels")
    config.expect("channels", [channels[0]] * len(channels))
    config.expect("act_fn", "gelu")
    config.expect("in_channels", 4 * n_mels)
    config.expect("out_channels", n_mels)
    shape = UnetConfig(
        n_mels=n_mels,
        n_channels=channels[0],
        n_layers=config.integer("n_blocks"),
        n_middle=config.integer("num_mid_blocks"),
        n_heads=config.integer("num_heads"),
        head_dim=config.integer("attention_head_dim"),
    )
    return shape, len(channels)


def _hift(config: Config, n_mels: int) -> HiftConfig:
    config.expect("in_channels", n_mels)
    predictor = _part(config, "f0_predictor", "ConvRNNF0Predictor")
    transform = config.part("istft_params")
    return HiftConfig(
        sample_rate_hz=config.integer("sampling_rate"),
        n_mels=n_mels,
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
        # The reference's class of that time steps by frames.
        is_interpolated=False,
        slope=config.number("lrelu_slope"),
        limit=config.number("audio_limit"),
    )


def _dilations(config: Config, key: str) -> tuple[tuple[int, ...], ...]:
    """A list of lists of whole numbers."""
    found = config.optional(key)
    parts = {str(n): one for n, one in enumerate(found if isinstance(found, list) else [])}
    if not parts:
        config.integers(key)
    rows = Config(parts, config.source, f"{config.prefix}{key}.")
    return tuple(rows.integers(name) for name in parts)
