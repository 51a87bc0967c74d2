"""`csm`, put together to the contract of `models.base`: text rows in, frames of codes out.

Unlike the reference, all codes of a frame must be 0 to end the speech (`transformers` looks at all
but the last), and the marks above the codec's codes are never drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.audio.cache import ContentCache
from models.audio.reference import Reference
from models.base import Advance, Attention, Decoded, DepthCache, PromptPlan, TextFeed
from models.checkpoint import Taker
from models.codecs.mimi import Mimi, load_mimi
from models.csm import prompt
from models.csm.config import FACTS, CsmConfig, is_csm, model_spec, read_csm_config
from models.csm.weights import read_weights
from models.hugging_face import depth_step, load_decoder, make_decoder, read_tokenizer
from models.layers.linear import linear_of
from models.module import ModelModule
from models.spec import ModelSpec, PlanRequest

__all__ = ["FACTS", "CsmModel", "is_in", "load", "read_spec"]

BACKBONE = "backbone_model."
DEPTH = "depth_decoder.model."
MAX_VOICES = 256
"""Recordings of which the codes are kept; 30 s take 96 kB."""
CODE_TABLE = "backbone_model.embed_tokens.embed_audio_tokens.weight"


class CsmModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM, named as in `transformers`.
        mimi: the codec.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self, config: CsmConfig, tokenizer: Tokenizer, weights: Mapping[str, Tensor], mimi: Mimi
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config, mimi.codec_spec())
        self.tokenizer = tokenizer
        self.mimi = mimi
        self._codes: ContentCache[Tensor] = ContentCache(MAX_VOICES)
        left = dict(weights)
        self._take_tables(left)
        self.decoder = make_decoder(config.backbone)
        self.depth_decoder = make_decoder(config.depth)
        depth = {key: left.pop(key) for key in list(left) if key.startswith(DEPTH)}
        load_decoder(self.depth_decoder, depth, DEPTH, source="the checkpoint")
        load_decoder(self.decoder, left, BACKBONE, source="the checkpoint")
        self.requires_grad_(False)

    def _take_tables(self, weights: dict[str, Tensor]) -> None:
        """Tables and heads, out of `weights`. Raises: `WeightError`."""
        config = self.config
        n_ids, n_codebooks = config.backbone.n_ids, config.n_codebooks
        hidden, inner = config.backbone.backbone.hidden, config.depth.backbone.hidden
        # One table for both models: files hold it under one of the two names, or under both.
        of_depth = weights.pop(f"{DEPTH}embed_tokens.weight", None)
        if of_depth is not None:
            weights.setdefault(CODE_TABLE, of_depth)
        take = Taker(weights, "the checkpoint")
        self.text_table = take("embed_text_tokens.weight", config.n_text_ids, hidden)
        self.code_table = take(CODE_TABLE, n_codebooks * n_ids, hidden)
        self.head = linear_of(take("lm_head.weight", n_ids, hidden))
        self.projector = linear_of(take(f"{DEPTH}inputs_embeds_projector.weight", inner, hidden))
        heads = take("depth_decoder.codebooks_head.weight", n_codebooks - 1, inner, n_ids)
        self.depth_heads = nn.ModuleList(linear_of(head.T.contiguous()) for head in heads)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `PlanError`, see `models.csm.prompt.plan`."""
        return prompt.plan(request, self.spec, self.config, self.tokenizer, self._encode)

    def _encode(self, reference: Reference) -> Tensor:
        return self._codes.get(reference.key, lambda: self._encoded(reference))

    def _encoded(self, reference: Reference) -> Tensor:
        weight = self.mimi.downsample.conv.weight
        pcm = torch.from_numpy(reference.pcm).to(weight.device, weight.dtype)
        return self.mimi.encode(pcm.unsqueeze(0))[0].cpu()

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The text's row, or the sum of the codes' rows; every codebook has ids of its own."""
        n_ids = self.config.backbone.n_ids
        text, codes = ids[:, 0], ids[:, 1:]
        offset = n_ids * torch.arange(codes.shape[1], device=ids.device)
        of_codes = self.code_table[codes.clamp(max=n_ids - 1) + offset].sum(dim=1)
        of_text = self.text_table[text.clamp(max=self.config.n_text_ids - 1)]
        return torch.where((text == self.config.no_text).unsqueeze(1), of_codes, of_text)

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the first codebook."""
        return [self.head(hidden)]

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """The hidden state first, then the codes so far, all through one projection."""
        if position == 0:
            x = hidden
        else:
            assert ids is not None, "later positions come from an id"
            x = self.code_table[ids + (position - 1) * self.config.backbone.n_ids]
        projected: Tensor = self.projector(x)
        return projected

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """See `models.base.SpeechModel.depth_step`."""
        return depth_step(self.depth_decoder, x, position, cache)

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Each position has a head of its own."""
        logits: Tensor = self.depth_heads[position - 1](hidden)
        return logits

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Each row is a frame, but the one that ends the speech."""
        codes = ids[:, 1:]
        is_end = (codes == self.config.eos_code).all(dim=1)
        return Advance(
            rows=ids,
            state=state,
            frames=codes,
            emits=~is_end,
            text_ids=torch.full_like(ids[:, 0], -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.mimi.Mimi.decode`."""
        return self.mimi.decode(frames, n_valid, state)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_csm(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    config = read_csm_config(folder)
    with torch.device("meta"):
        return model_spec(config, Mimi(config.mimi).codec_spec())


def load(folder: Path) -> CsmModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_csm_config(folder)
    weights, codec, prefix = read_weights(folder, config)
    mimi = load_mimi(config.mimi, codec, source="the codec's weights", prefix=prefix)
    return CsmModel(config, read_tokenizer(folder), weights, mimi)
