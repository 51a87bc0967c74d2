"""The model, its streams and the sizes that all ways of guiding have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor

from engine.config import EngineConfig
from models.bagpiper.config import (
    AUDIO_DECODING,
    N_MARKS,
    SPOKEN_ORDER,
    TEXT_DECODING,
    BagpiperConfig,
)
from models.bagpiper.model import CODEC, BagpiperModel
from models.codecs.dac import DacConfig
from models.codecs.xcodec import Xcodec
from models.hugging_face import LlamaConfig
from models.layers.linear import pack
from models.layers.transformer import BlockStyle
from models.spec import BackboneSpec

N_PROMPT: Final = 64
SCALE: Final = AUDIO_DECODING.guidance
PAGE_SIZE: Final = 16
ENDLESS: Final = 1 << 30
CODES: Final = DacConfig(
    sample_rate_hz=16_000,
    latent=16,
    decoder_channels=32,
    strides=(8, 5, 4, 2),
    n_codebooks=8,
    n_codes=1024,
    code_dim=16,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the model and the run: `n_pairs` streams are guided, twice as many are not.

    An answer has `n_text_rows` of text and `n_frames` of speech.
    """

    backbone: BackboneSpec
    inner: int
    n_text: int
    n_pairs: int
    n_text_rows: int
    n_frames: int

    @property
    def n_rows_before(self) -> int:
        """Rows that are fed before those of speech: a mark, the text, who speaks."""
        return self.n_text_rows + 2

    @property
    def n_rows(self) -> int:
        """Rows that an answer feeds: the delay is drawn with the frames."""
        return self.n_rows_before + self.n_frames + CODES.n_codebooks - 1


SIZES: Final = {
    "full": Size(
        backbone=BackboneSpec(
            n_layers=12, n_query_heads=12, n_kv_heads=4, head_dim=64, hidden=768, max_positions=256
        ),
        inner=2048,
        n_text=4096,
        n_pairs=16,
        n_text_rows=40,
        n_frames=40,
    ),
    "small": Size(
        backbone=BackboneSpec(
            n_layers=2, n_query_heads=2, n_kv_heads=1, head_dim=16, hidden=32, max_positions=256
        ),
        inner=64,
        n_text=64,
        n_pairs=2,
        n_text_rows=5,
        n_frames=12,
    ),
}


def make_model(size: Size) -> BagpiperModel:
    """A model with random weights; its text has a length, its speech does not end."""
    low = N_MARKS + size.n_text
    width = CODES.n_codes + 1
    n_ids = low + width * CODES.n_codebooks
    rows = size.n_text_rows
    config = BagpiperConfig(
        decoder=LlamaConfig(
            backbone=size.backbone,
            inner=size.inner,
            n_ids=n_ids,
            eps=1e-6,
            theta=1e6,
            scaling=None,
            style=BlockStyle(qk_norm="head"),
        ),
        tokenizer=Path(),
        text_ids=(N_MARKS, low),
        code_ids=tuple((low + width * n, low + width * (n + 1)) for n in range(CODES.n_codebooks)),
        codec=CODES,
        text=replace(TEXT_DECODING, least_rows=rows, most_rows=rows),
        audio=replace(AUDIO_DECODING, least_rows=ENDLESS, most_rows=ENDLESS),
        order=SPOKEN_ORDER,
        system="",
        has_encoder=False,
    )
    tokenizer = Tokenizer(WordLevel({"x": 0}, "x"))
    model = BagpiperModel(config, tokenizer, _random_weights(config))
    pack(model)
    return model


def _random_weights(config: BagpiperConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape, inner = config.decoder.backbone, config.decoder.inner
    hidden, n_ids = shape.hidden, config.decoder.n_ids
    n_q, n_kv = shape.n_query_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim

    def draw(*sizes: int) -> Tensor:
        return 0.03 * torch.randn(*sizes, generator=generator)

    weights = {
        "model.embed_tokens.weight": draw(n_ids, hidden),
        "lm_head.weight": draw(n_ids, hidden),
        "stream_emb.weight": draw(config.n_columns, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for n in range(shape.n_layers):
        stem = f"model.layers.{n}."
        for name, sizes in (
            ("self_attn.q_proj", (n_q, hidden)),
            ("self_attn.k_proj", (n_kv, hidden)),
            ("self_attn.v_proj", (n_kv, hidden)),
            ("self_attn.o_proj", (hidden, n_q)),
            ("mlp.gate_proj", (inner, hidden)),
            ("mlp.up_proj", (inner, hidden)),
            ("mlp.down_proj", (hidden, inner)),
        ):
            weights[f"{stem}{name}.weight"] = draw(*sizes)
        for name, size in (
            ("input_layernorm", hidden),
            ("post_attention_layernorm", hidden),
            ("self_attn.q_norm", shape.head_dim),
            ("self_attn.k_norm", shape.head_dim),
        ):
            weights[f"{stem}{name}.weight"] = torch.ones(size)
    codec = Xcodec(config.codec).state_dict()
    return weights | {f"{CODEC}{name}": tensor for name, tensor in codec.items()}


def prompt_of(model: BagpiperModel, number: int) -> Tensor:
    """Rows `(N_PROMPT, 8)` of text, other ones for each stream."""
    low, high = model.config.text_ids
    generator = torch.Generator().manual_seed(number)
    ids = torch.zeros((N_PROMPT, model.config.n_columns), dtype=torch.int64)
    ids[:, 0] = torch.randint(low, high, (N_PROMPT,), generator=generator)
    return ids


def n_longest(size: Size) -> int:
    """Pages of the longest stream."""
    return -(-size.backbone.max_positions // PAGE_SIZE)


def config_of(size: Size) -> EngineConfig:
    """Room for all streams and as many companions; prompts that come together run together."""
    n_streams = 2 * size.n_pairs
    n_prompt_rows = n_streams * (N_PROMPT + size.n_rows_before)
    return EngineConfig(
        max_streams=n_streams,
        max_batch_rows=n_prompt_rows,
        prefill_rows_per_step=n_prompt_rows,
        page_size=PAGE_SIZE,
        n_pages=1 + 2 * n_streams * n_longest(size),
        policy="throughput",
        target_load=1.0,
    )
