"""Models of the published sizes with random weights, made on the device: no file, nothing copied.

A reader of checkpoints takes the weights as a mapping of tensors. Here the tensors are drawn where
the model will run, under `torch.device`, so that it is built there too.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from loadtest.gpu_check.sizes import write_orpheus, write_qwen3_tts
from loadtest.gpu_check.where import Where
from models.base import Advance, PromptPlan, SpeechModel, TextFeed
from models.codecs.qwen import QwenCodec
from models.codecs.snac import Snac
from models.hugging_face import LlamaConfig, read_tokenizer
from models.layers.transformer import cast_decoders
from models.orpheus.config import N_SLOTS, read_orpheus_config
from models.orpheus.model import ROW, OrpheusModel
from models.qwen3_tts.config import STEP, QwenTtsConfig, read_qwen3_tts_config
from models.qwen3_tts.model import PREDICTOR, TALKER, QwenTtsModel
from models.spec import ModelSpec, PlanRequest

SPOKEN_S: Final = 4.0
"""How long a random model speaks, whatever the text: it knows no end."""
SMALL_FRAMES: Final = 6
"""All that a small model says: it only has to say something."""
Shapes = dict[str, tuple[int, ...]]


def make_orpheus(where: Where, *, is_small: bool) -> SpeechModel:
    """Orpheus-3B, or a small one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_orpheus(folder, is_small=is_small)
        config, tokenizer = read_orpheus_config(folder), read_tokenizer(folder)
    snac = _drawn(lambda: Snac(config.snac))
    shapes = decoder_shapes(config.llama, "model.")
    shapes["model.embed_tokens.weight"] = (config.llama.n_ids, config.llama.backbone.hidden)
    with where.device:
        model = _ShortOrpheus(config, tokenizer, dict(weights(shapes)), snac)
    model.n_frames = _n_frames(model.spec, is_small=is_small)
    return _placed(model, where)


def make_qwen3_tts(where: Where, *, is_small: bool) -> SpeechModel:
    """Qwen3-TTS-1.7B, or a small one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_qwen3_tts(folder, is_small=is_small)
        config, tokenizer = read_qwen3_tts_config(folder), read_tokenizer(folder)
    codec = _drawn(lambda: QwenCodec(config.codec))
    with where.device:
        drawn = dict(weights(qwen_shapes(config)))
        model = _ShortQwen(config, tokenizer, drawn, codec)
    model.n_frames = _n_frames(model.spec, is_small=is_small)
    return _placed(model, where)


MODELS: Final[dict[str, Callable[..., SpeechModel]]] = {
    "qwen3-tts-1.7b": make_qwen3_tts,
    "orpheus-3b": make_orpheus,
}


def weights(shapes: Shapes) -> Iterator[tuple[str, Tensor]]:
    """Random tensors on the default device, by name.

    Norms are ones; a matrix keeps the size of what goes through it, so that every layer counts.
    """
    torch.manual_seed(0)
    for name, shape in shapes.items():
        is_norm = "norm" in name
        yield (
            name,
            torch.ones(shape) if is_norm else torch.empty(shape).normal_(std=shape[-1] ** -0.5),
        )


def decoder_shapes(config: LlamaConfig, prefix: str) -> Shapes:
    """Of a decoder's layers, by the names of its checkpoint."""
    spec = config.backbone
    n_q, n_kv = spec.n_query_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    of_layer: Shapes = {
        "self_attn.q_proj.weight": (n_q, spec.hidden),
        "self_attn.k_proj.weight": (n_kv, spec.hidden),
        "self_attn.v_proj.weight": (n_kv, spec.hidden),
        "self_attn.o_proj.weight": (spec.hidden, n_q),
        "mlp.gate_proj.weight": (config.inner, spec.hidden),
        "mlp.up_proj.weight": (config.inner, spec.hidden),
        "mlp.down_proj.weight": (spec.hidden, config.inner),
        "input_layernorm.weight": (spec.hidden,),
        "post_attention_layernorm.weight": (spec.hidden,),
    }
    if config.style.qk_norm == "head":
        of_layer |= {f"self_attn.{one}_norm.weight": (spec.head_dim,) for one in "qk"}
    shapes = {
        f"{prefix}layers.{layer}.{name}": shape
        for layer in range(spec.n_layers)
        for name, shape in of_layer.items()
    }
    return {**shapes, f"{prefix}norm.weight": (spec.hidden,)}


def qwen_shapes(config: QwenTtsConfig) -> Shapes:
    """Of a Qwen3-TTS checkpoint, by its names."""
    hidden, inner = config.talker.backbone.hidden, config.predictor.backbone.hidden
    width, stem = config.text_hidden, "talker.code_predictor"
    shapes: Shapes = {
        f"{TALKER}text_embedding.weight": (config.n_text_ids, width),
        "talker.text_projection.linear_fc1.weight": (width, width),
        "talker.text_projection.linear_fc1.bias": (width,),
        "talker.text_projection.linear_fc2.weight": (hidden, width),
        "talker.text_projection.linear_fc2.bias": (hidden,),
        f"{TALKER}codec_embedding.weight": (config.talker.n_ids, hidden),
        "talker.codec_head.weight": (config.talker.n_ids, hidden),
    }
    for n in range(config.n_codebooks - 1):
        shapes[f"{PREDICTOR}codec_embedding.{n}.weight"] = (config.predictor.n_ids, hidden)
        shapes[f"{stem}.lm_head.{n}.weight"] = (config.predictor.n_ids, inner)
    if hidden != inner:
        shapes[f"{stem}.small_to_mtp_projection.weight"] = (inner, hidden)
        shapes[f"{stem}.small_to_mtp_projection.bias"] = (inner,)
    talker, predictor = (
        decoder_shapes(part, prefix)
        for part, prefix in ((config.talker, TALKER), (config.predictor, PREDICTOR))
    )
    return {**shapes, **talker, **predictor}


class _ShortOrpheus(OrpheusModel):
    """Stops after so many frames."""

    n_frames = 0

    def plan(self, request: PlanRequest) -> PromptPlan:
        """See `OrpheusModel.plan`."""
        return dataclasses.replace(super().plan(request), max_frames=self.n_frames + 1)

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `OrpheusModel.advance`."""
        out = super().advance(state, ids, feed)
        return _ended(out, state[:, ROW] + 1 >= self.n_frames * N_SLOTS)


class _ShortQwen(QwenTtsModel):
    """Stops after so many frames."""

    n_frames = 0

    def plan(self, request: PlanRequest) -> PromptPlan:
        """See `QwenTtsModel.plan`."""
        return dataclasses.replace(super().plan(request), max_frames=self.n_frames + 1)

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """See `QwenTtsModel.advance`."""
        return _ended(super().advance(state, ids, feed), state[:, STEP] + 1 >= self.n_frames)


def _ended(out: Advance, is_over: Tensor) -> Advance:
    return dataclasses.replace(out, is_finished=out.is_finished | is_over)


def _n_frames(spec: ModelSpec, *, is_small: bool) -> int:
    return SMALL_FRAMES if is_small else round(SPOKEN_S * spec.frame.frame_rate_hz)


def _drawn(make: Callable[[], Any]) -> Any:  # noqa: ANN401  a module comes and goes
    """A detokenizer with the random weights that its layers draw; small, and made on the CPU."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return make()


def _placed(model: OrpheusModel | QwenTtsModel, where: Where) -> SpeechModel:
    """As the server has it: on the device, with decoders in half precision."""
    cast_decoders(model, where.dtype)
    return model.to(where.device).requires_grad_(False)
