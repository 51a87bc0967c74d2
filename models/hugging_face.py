"""Decoders of the Llama kind as `transformers` saves them: shape from `config.json`, keys by name.

Source of the key names and config keys: `transformers` 5, `LlamaForCausalLM.save_pretrained`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from models.base import DepthCache
from models.checkpoint import Config, read_config
from models.errors import WeightError
from models.layers.rotary import Rotary
from models.layers.transformer import LLAMA, BlockStyle, Decoder, DecoderLayer
from models.spec import BackboneSpec, DepthSpec
from models.weights import Part, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Shape of a decoder.

    Args:
        backbone: in the words of the contract.
        inner: width of the feed-forward layers.
        n_ids: vocabulary.
        eps: of the norms.
        theta: base of the rotary embedding.
        scaling: of its frequencies; None: plain.
        style: of its blocks.
    """

    backbone: BackboneSpec
    inner: int
    n_ids: int
    eps: float
    theta: float
    scaling: Llama3Scaling | None
    style: BlockStyle = LLAMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """How Llama 3.1 and later stretch slow rotations; the field names are those of the config."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def stretch(self, inv_freq: Tensor) -> Tensor:
        """Frequencies for longer contexts.

        Waves longer than the trained context over `low_freq_factor` are slowed by `factor`, those
        shorter than it over `high_freq_factor` stay, and between them the two are blended.

        Source: `transformers` 5, `modeling_rope_utils._compute_llama3_parameters`.
        """
        wave = 2 * math.pi / inv_freq
        turns = self.original_max_position_embeddings / wave
        low, high = self.low_freq_factor, self.high_freq_factor
        share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - share) * inv_freq / self.factor + share * inv_freq


def llama_config(config: Config, *, max_positions: int, style: BlockStyle = LLAMA) -> LlamaConfig:
    """The shape in a `config.json`.

    Args:
        config: of the decoder.
        style: of its blocks, which the architecture's name means.
        max_positions: most rows of a stream; the checkpoint may have been trained for more.

    Raises:
        WeightError: a key is missing or says what is not known here; it is named.
    """
    for key, value in (
        ("hidden_act", "silu"),
        ("attention_bias", style.has_bias),
        ("mlp_bias", False),
        ("use_sliding_window", False),
    ):
        config.expect(key, value)
    theta, scaling = _rotary(config)
    trained = config.count("max_position_embeddings")
    return LlamaConfig(
        backbone=BackboneSpec(
            n_layers=config.count("num_hidden_layers"),
            n_query_heads=config.count("num_attention_heads"),
            n_kv_heads=config.count("num_key_value_heads"),
            head_dim=config.count("head_dim"),
            hidden=config.count("hidden_size"),
            max_positions=min(trained, max_positions),
        ),
        inner=config.count("intermediate_size"),
        n_ids=config.count("vocab_size"),
        eps=config.positive("rms_norm_eps"),
        theta=theta,
        scaling=scaling,
        style=style,
    )


QWEN_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer parts words. Source: `transformers` 5, `tokenization_qwen2.py`."""


def read_tokenizer(folder: Path, name: str = "tokenizer.json") -> Tokenizer:
    """The text tokenizer of a checkpoint: the file `name`, or `vocab.json` and `merges.txt`.

    Raises:
        WeightError: the files are missing or damaged.
    """
    path = folder / name
    if not path.is_file() and (folder / "vocab.json").is_file():
        return _qwen_tokenizer(folder)
    if not path.is_file():
        raise WeightError(f"{path} is missing; fetch the checkpoint's files again")
    try:
        return Tokenizer.from_file(str(path))
    # The library raises bare exceptions.
    except Exception as error:
        raise WeightError(f"{path} is damaged: {error}") from error


def _qwen_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of checkpoints that keep it in the older files of Qwen2."""
    words = pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return read_byte_tokenizer(folder, pre_tokenizers.Sequence([words, letters]), normalizers.NFC())


def read_byte_tokenizer(
    folder: Path,
    parting: pre_tokenizers.PreTokenizer,
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    """The tokenizer of bytes in `vocab.json`, `merges.txt` and `tokenizer_config.json`.

    Args:
        folder: of the checkpoint.
        parting: how words are parted, and written in the letters of bytes.
        normalizer: of the text before.

    Raises:
        WeightError: the files are missing or damaged.
    """
    try:
        model = BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    # The library raises bare exceptions.
    except Exception as error:
        raise WeightError(f"vocab.json or merges.txt in {folder} is damaged: {error}") from error
    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = parting
    tokenizer.decoder = decoders.ByteLevel()
    added = read_config(folder / "tokenizer_config.json").part("added_tokens_decoder")
    for idx in sorted(added.values, key=int):
        token = added.part(idx)
        content = token.text("content")
        if token.flag("special"):
            tokenizer.add_special_tokens([content])
        else:
            tokenizer.add_tokens([content])
        if tokenizer.token_to_id(content) != int(idx):
            raise WeightError(f"tokenizer_config.json puts {content!r} at {idx}, behind a gap")
    return tokenizer


def make_decoder(config: LlamaConfig) -> Decoder:
    """A decoder without values, on the default device: drawing random ones takes minutes."""
    with torch.device("meta"):
        decoder = Decoder(
            config.backbone,
            inner=config.inner,
            theta=config.theta,
            eps=config.eps,
            style=config.style,
        )
    decoder.to_empty(device=torch.get_default_device())
    head_dim = config.backbone.head_dim
    steps = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    inv_freq = 1.0 / config.theta**steps
    if config.scaling is not None:
        inv_freq = config.scaling.stretch(inv_freq)
    decoder.rotary = Rotary(
        head_dim,
        config.backbone.max_positions,
        config.theta,
        is_interleaved=config.style.is_interleaved,
        inv_freq=inv_freq,
    )
    return decoder


def depth_spec(config: LlamaConfig, columns: Sequence[str]) -> DepthSpec:
    """A decoder as the depth model over `columns`, of which the backbone samples the first."""
    backbone = config.backbone
    return DepthSpec(
        first_column=columns[0],
        columns=tuple(columns[1:]),
        n_layers=backbone.n_layers,
        n_query_heads=backbone.n_query_heads,
        n_kv_heads=backbone.n_kv_heads,
        head_dim=backbone.head_dim,
        hidden=backbone.hidden,
    )


def depth_step(decoder: Decoder, x: Tensor, position: int, cache: DepthCache) -> Tensor:
    """One row of each stream through a depth model; see `models.base.SpeechModel.depth_step`."""

    def attention(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cache(layer_idx, position, q, k, v)

    positions = torch.full_like(x[:, 0], position, dtype=torch.int64)
    hidden: Tensor = decoder(x, positions, attention)
    return hidden


def load_decoder(
    decoder: Decoder, tensors: Mapping[str, Tensor], prefix: str, *, source: str
) -> None:
    """Fill a decoder from `<prefix>layers.N...` and `<prefix>norm.weight`; nothing may be left.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named as the file has them.
    """
    own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
    stray = sorted(key for key in tensors if not key.startswith(prefix))
    names = {"norm.weight": f"{prefix}norm.weight"}
    renamed: dict[str, Tensor | list[Part]] = {
        "norm.weight": _take(own, "norm.weight", prefix, source)
    }
    for idx, layer in enumerate(decoder.layers):
        assert isinstance(layer, DecoderLayer), "made so"
        rows = {"attention": layer.attention.rows, "mlp": layer.mlp.rows}
        for their_names, our_name in _parts(decoder.style):
            ours, stems = f"layers.{idx}.{our_name}", [f"layers.{idx}.{one}" for one in their_names]
            taken = [_take(own, stem, prefix, source) for stem in stems]
            called = [prefix + stem for stem in stems]
            if len(taken) == 1:
                (renamed[ours],), (names[ours],) = taken, called
                continue
            joined = zip(called, taken, rows[our_name.partition(".")[0]], strict=True)
            renamed[ours] = [Part(name=name, tensor=one, n_rows=n) for name, one, n in joined]
    if own or stray:
        extra = ", ".join([*sorted(prefix + key for key in own), *stray][:8])
        raise WeightError(f"{source} has keys that the decoder does not know: {extra}")
    load_weights(decoder, renamed, source=source, names=names)


def _parts(style: BlockStyle) -> list[tuple[tuple[str, ...], str]]:
    """Their names in a layer, joined by rows, and ours."""
    parts = list(_PARTS)
    if style.has_bias:
        names = tuple(f"self_attn.{one}_proj.bias" for one in "qkv")
        parts.append((names, "attention.qkv.bias"))
    if style.qk_norm != "none":
        parts += [
            ((f"self_attn.{one}_norm.weight",), f"attention.{one}_norm.weight") for one in "qk"
        ]
    if style.norms == "before":
        norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    else:
        norms = ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
    return [*parts, ((norms[0],), "attention_norm.weight"), ((norms[1],), "mlp_norm.weight")]


_PARTS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "attention.qkv.weight",
    ),
    (("self_attn.o_proj.weight",), "attention.out.weight"),
    (("mlp.gate_proj.weight", "mlp.up_proj.weight"), "mlp.gate_up.weight"),
    (("mlp.down_proj.weight",), "mlp.down.weight"),
)


def _take(tensors: dict[str, Tensor], key: str, prefix: str, source: str) -> Tensor:
    if key not in tensors:
        raise WeightError(f"{source} lacks {prefix}{key}")
    return tensors.pop(key)


def _rotary(config: Config) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling, in the spellings of `transformers` 4 and 5."""
    if config.optional("rope_parameters") is not None:
        rope = config.part("rope_parameters")
        theta = rope.positive("rope_theta")
    elif config.optional("rope_scaling") is not None:
        rope, theta = config.part("rope_scaling"), config.positive("rope_theta")
    else:
        return config.positive("rope_theta"), None
    kind = rope.text("rope_type" if rope.optional("type") is None else "type")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise WeightError(f"{config.source}: rotary embedding of type {kind!r} is not known here")
    return theta, Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )
