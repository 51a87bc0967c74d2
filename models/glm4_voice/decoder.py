"""The detokenizer's folder: `config.yaml` (HyperPyYAML), `flow.pt`, `hift.pt`.

Source: zai-org/glm-4-voice-decoder, whose `config.yaml` names classes of zai-org/GLM-4-Voice,
`cosyvoice/` (Apache-2.0). They are names here: nothing of them is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from models.checkpoint import Config, read_torch_file
from models.codecs.block_conformer import BlockConformerConfig
from models.codecs.block_flow import CHUNK_TOKENS, BlockCodec, BlockFlowConfig, make_block_flow
from models.codecs.hift import HiftConfig, make_hift
from models.codecs.hift_yaml import read_hift
from models.codecs.unet import UnetConfig
from models.errors import WeightError
from models.hyperpyyaml import part_of, read_hyperpyyaml

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
    flow = part_of(config, "flow", "MaskedDiffWithXvec")
    n_mels = flow.count("output_size")
    hift = read_hift(config)
    if hift.n_mels != n_mels:
        raise WeightError(
            f"{config.source} has hift.in_channels = {hift.n_mels}, must be {n_mels}, as "
            f"flow.output_size"
        )
    regulator = part_of(flow, "length_regulator", "InterpolateRegulator")
    ratios = regulator.integers("sampling_ratios")
    regulator.expect("channels", n_mels)
    decoder = part_of(flow, "decoder", "ConditionalCFM")
    solver = decoder.part("cfm_params").part("content")
    solver.expect("solver", "euler")
    solver.expect("t_scheduler", "cosine")
    estimator, n_levels = _estimator(part_of(decoder, "estimator", "ConditionalDecoder"), n_mels)
    return (
        BlockFlowConfig(
            n_tokens=flow.count("vocab_size"),
            token_rate_hz=flow.positive("input_frame_rate"),
            speaker_dim=flow.count("spk_embed_dim"),
            encoder=_encoder(part_of(flow, "encoder", "BlockConformerEncoder")),
            n_smooth=len(ratios),
            estimator=estimator,
            n_levels=n_levels,
            n_steps=N_STEPS,
            guidance=solver.number("inference_cfg_rate"),
        ),
        hift,
    )


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
    size = config.count("output_size")
    return BlockConformerConfig(
        n_in=config.count("input_size"),
        size=size,
        n_heads=config.divisor("attention_heads", size),
        inner=config.count("linear_units"),
        n_layers=config.count("num_blocks"),
        block_tokens=config.divisor("block_size", CHUNK_TOKENS),
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
        n_layers=config.count("n_blocks"),
        n_middle=config.count("num_mid_blocks"),
        n_heads=config.count("num_heads"),
        head_dim=config.count("attention_head_dim"),
    )
    return shape, len(channels)
