"""`qwen3_tts`, put together to the contract of `models.base`: text goes in a row at a time.

The three rotary axes of the talker always move together here, so that its embedding is the plain
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.audio.reference import REFERENCE_AUDIO, read_reference, reference_words
from models.base import Advance, Attention, Decoded, DepthCache, PromptPlan, TextFeed
from models.checkpoint import Taker, read_safetensors
from models.codecs.qwen import QwenCodec
from models.codecs.qwen_weights import load_qwen_codec
from models.errors import PlanError
from models.hugging_face import depth_step, load_decoder, make_decoder, read_tokenizer
from models.layers.linear import linear_of
from models.module import ModelModule
from models.options import check_options
from models.qwen3_tts import prompt
from models.qwen3_tts.config import (
    CODEC_FOLDER,
    FACTS,
    IS_TOLD,
    STEP,
    QwenTtsConfig,
    is_qwen3_tts,
    model_spec,
    read_qwen3_tts_config,
)
from models.qwen3_tts.voice import VoiceEncoder
from models.spec import ModelSpec, PlanRequest

__all__ = ["FACTS", "QwenTtsModel", "is_in", "load", "read_spec"]

TALKER = "talker.model."
PREDICTOR = "talker.code_predictor.model."
MIN_FRAMES = 2
"""The end is not drawn before so many. Source: `min_new_tokens` of the reference."""


class QwenTtsModel(ModelModule):
    """The functions of the model.

    Args:
        config: of the checkpoint.
        tokenizer: of its text.
        weights: of the LM, by the checkpoint's keys.
        codec: the detokenizer.
        voices: what Base checkpoints hear recordings with.

    Raises:
        WeightError: keys are missing, unexpected or misshapen.
    """

    def __init__(
        self,
        config: QwenTtsConfig,
        tokenizer: Tokenizer,
        weights: Mapping[str, Tensor],
        codec: QwenCodec,
        voices: VoiceEncoder | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.spec = model_spec(config, codec.codec_spec())
        self.tokenizer = tokenizer
        self.codec = codec
        self.voices = voices
        left = dict(weights)
        self._take_tables(left)
        self.decoder = make_decoder(config.talker)
        self.predictor = make_decoder(config.predictor)
        deep = {key: left.pop(key) for key in list(left) if key.startswith(PREDICTOR)}
        load_decoder(self.predictor, deep, PREDICTOR, source="model.safetensors")
        load_decoder(self.decoder, left, TALKER, source="model.safetensors")
        self.requires_grad_(False)

    def _take_tables(self, weights: dict[str, Tensor]) -> None:
        """Tables, heads and projections, out of `weights`. Raises: `WeightError`."""
        config = self.config
        hidden, inner = config.talker.backbone.hidden, config.predictor.backbone.hidden
        n_first, n_codes, width = config.talker.n_ids, config.predictor.n_ids, config.text_hidden
        take = Taker(weights, "model.safetensors")
        self.text_table = take(f"{TALKER}text_embedding.weight", config.n_text_ids, width)
        self.text_in = take.linear("talker.text_projection.linear_fc1", width, width)
        self.text_out = take.linear("talker.text_projection.linear_fc2", width, hidden)
        self.first_table = take(f"{TALKER}codec_embedding.weight", n_first, hidden)
        self.first_head = linear_of(take("talker.codec_head.weight", n_first, hidden))
        others = range(config.n_codebooks - 1)
        tables: list[Tensor] = [
            take(f"{PREDICTOR}codec_embedding.{n}.weight", n_codes, hidden) for n in others
        ]
        self.other_tables = nn.Parameter(torch.stack(tables))
        stem = "talker.code_predictor"
        self.other_heads = nn.ModuleList(
            linear_of(take(f"{stem}.lm_head.{n}.weight", n_codes, inner)) for n in others
        )
        self.to_predictor: nn.Module = nn.Identity()
        if hidden != inner:
            self.to_predictor = take.linear(f"{stem}.small_to_mtp_projection", hidden, inner)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread.

        Raises:
            PlanError: see `models.qwen3_tts.prompt.plan`, `models.audio.reference.read_reference`;
                `missing_audio` (a Base checkpoint without a voice), `invalid_reference` (another
                one with a voice, words without a voice).
        """
        return prompt.plan(request, self.spec, self.config, self.tokenizer, self._heard(request))

    def _heard(self, request: PlanRequest) -> prompt.Heard | None:
        if self.voices is None:
            if request.audio is not None:
                message = "this checkpoint has voices of its own; a Base checkpoint takes others"
                raise PlanError("invalid_reference", message, REFERENCE_AUDIO.name)
            return None
        options = check_options(self.spec, request.options)
        reference = read_reference(request, options, self.voices.rate_hz)
        words = reference_words(options, reference)
        if reference is None:
            message = f"this checkpoint speaks with your voices only: give {REFERENCE_AUDIO.name}"
            raise PlanError("missing_audio", message, REFERENCE_AUDIO.name)
        voice = self.voices.voice(reference, self.codec, has_words=words is not None)
        pad = self._projected(self.text_table[self.config.tts_pad].unsqueeze(0))[0].cpu()
        return prompt.Heard(voice=voice, row=pad + voice.vector, words=words)

    def extend(self, plan: PromptPlan, text: str, *, is_final: bool) -> Tensor:
        """Ids of more text."""
        return torch.tensor(prompt.text_ids(text, self.tokenizer), dtype=torch.int64)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """The text's row and the codes' rows, as many of them as there are, summed."""
        text, first, others = ids[:, 0], ids[:, 1], ids[:, 2:]
        config = self.config
        spoken = self.text_table[text.clamp(max=config.n_text_ids - 1)]
        x = _where(text < config.n_text_ids, self._projected(spoken))
        n_first, n_codes = config.talker.n_ids, config.predictor.n_ids
        x = x + _where(first < n_first, self.first_table[first.clamp(max=n_first - 1)])
        levels = torch.arange(others.shape[1], device=ids.device)
        rows = self.other_tables[levels, others.clamp(max=n_codes - 1)].sum(dim=1)
        return x + _where(others[:, 0] < n_codes, rows)

    def _projected(self, rows: Tensor) -> Tensor:
        x: Tensor = self.text_out(nn.functional.silu(self.text_in(rows)))
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the first codebook."""
        return [self.first_head(hidden)]

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """No end in the first two rows."""
        is_eos = (
            torch.arange(self.config.talker.n_ids, device=state.device) == self.config.marks.eos
        )
        is_early = (state[:, STEP] < MIN_FRAMES).unsqueeze(1)
        return [logits[0].masked_fill(is_early & is_eos, -torch.inf)]

    def depth_embed(self, position: int, hidden: Tensor, ids: Tensor | None) -> Tensor:
        """The hidden state, the first code by the talker's table, the others by their own."""
        if position == 0:
            x = hidden
        else:
            assert ids is not None, "later positions come from an id"
            table = self.first_table if position == 1 else self.other_tables[position - 2]
            x = table[ids]
        projected: Tensor = self.to_predictor(x)
        return projected

    def depth_step(self, x: Tensor, position: int, cache: DepthCache) -> Tensor:
        """See `models.base.SpeechModel.depth_step`."""
        return depth_step(self.predictor, x, position, cache)

    def depth_head(self, position: int, hidden: Tensor) -> Tensor:
        """Each position has a head of its own."""
        logits: Tensor = self.other_heads[position - 1](hidden)
        return logits

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """A row is a frame, but the end; it takes the next id of text along, then the marks."""
        config = self.config
        step = state[:, STEP]
        is_end = ids[:, 1] == config.marks.eos
        # A text whose end stands in the prompt is past it from the first row on.
        place = step + state[:, IS_TOLD]
        is_there = place < feed.n_ids
        at = place.clamp(max=feed.ids.shape[1] - 1).unsqueeze(1)
        after = torch.where(place == feed.n_ids, config.tts_eos, config.tts_pad)
        text = torch.where(is_there, feed.ids.gather(1, at)[:, 0], after)
        return Advance(
            rows=torch.cat([text.unsqueeze(1), ids[:, 1:]], dim=1),
            state=torch.stack([state[:, 0], step + 1, state[:, IS_TOLD]], dim=1),
            frames=ids[:, 1:],
            emits=~is_end,
            text_ids=torch.full_like(step, -1),
            is_finished=is_end,
            is_starved=~is_end & ~is_there & ~feed.is_final,
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.codecs.qwen.QwenCodec.decode`."""
        return self.codec.decode(frames, n_valid, state)


def _where(is_there: Tensor, rows: Tensor) -> Tensor:
    return torch.where(is_there.unsqueeze(1), rows, 0.0)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family, by what its files state."""
    return is_qwen3_tts(folder)


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint. Raises: `WeightError`."""
    config = read_qwen3_tts_config(folder)
    with torch.device("meta"):
        return model_spec(config, QwenCodec(config.codec).codec_spec())


def load(folder: Path) -> QwenTtsModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    config = read_qwen3_tts_config(folder)
    weights, of_codec = read_safetensors(folder), read_safetensors(folder / CODEC_FOLDER)
    codec = load_qwen_codec(config.codec, of_codec, source=f"{CODEC_FOLDER}/model.safetensors")
    voices = None
    if config.voice is not None:
        voices = VoiceEncoder(config.voice, weights, of_codec, config.n_codebooks)
    return QwenTtsModel(config, read_tokenizer(folder), weights, codec, voices)
