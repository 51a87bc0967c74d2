"""`chatterbox-turbo`: a GPT-2 that writes speech tokens, and a flow of two steps, unguided.

Its smaller sibling, Nano, is of the same shape. Unlike the reference, what is no speech token is
never drawn, the penalty on repetition comes before top-k and top-p and looks back 256 rows, and
recordings are taken as loud as they are (there they are brought to -27 LUFS).

Source: resemble-ai/chatterbox, `tts_turbo.py` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.audio.cache import ContentCache
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.chatterbox.codec import SpeechCodec, make_codec_spec
from models.chatterbox.config import (
    DEFAULT_VOICE,
    MAX_FRAMES,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    SPEECH,
    TEMPERATURE,
    VOICE_ENCODER,
)
from models.chatterbox.files import (
    codec_of,
    default_voice,
    listener_of,
    read_part,
    split_codec,
)
from models.chatterbox.shapes import is_mean_flow, n_speech_tokens
from models.chatterbox.turbo_lm import MAX_PROMPT, MAX_TEXT, TurboConfig, TurboLm, turbo_config
from models.chatterbox.turbo_prompt import (
    CODEC,
    FACTS,
    LMS,
    N_ENDING,
    N_SILENT,
    SILENCE,
    TOP_K,
    TOP_P,
    read_gpt2_tokenizer,
    text_ids,
    turbo_spec,
)
from models.chatterbox.voice import MAX_READY, Listener, ReadyVoice, Voice, voice_of
from models.checkpoint import REMEDY
from models.errors import PlanError, WeightError
from models.hub import Needs
from models.limits import frame_limit, least_frames
from models.module import ModelModule
from models.options import check_language, check_options
from models.spec import ModelSpec, OptionValue, PlanRequest, SamplingParams
from models.weights import read_tensors

__all__ = ["FACTS", "TurboModel", "is_in", "load", "needs", "read_spec"]

LM_HEARS_S = 15
"""Seconds of a recording that the LM looks at."""


class TurboModel(ModelModule):
    """The functions of the model.

    Args:
        lm: writes speech tokens.
        codec: makes sound of them.
        tokenizer: of the text.
        listener: hears the voices of recordings.
        voice: speaks where no recording is given; None: one must be.
    """

    def __init__(
        self,
        *,
        lm: TurboLm,
        codec: SpeechCodec,
        tokenizer: Tokenizer,
        listener: Listener,
        voice: Voice | None,
    ) -> None:
        super().__init__()
        self.config = lm.config
        self.spec = turbo_spec(lm.config, codec.spec)
        self.lm, self.codec, self.listener = lm, codec, listener
        self.tokenizer = tokenizer
        self.voice = voice
        self._ready: ContentCache[ReadyVoice] = ContentCache(MAX_READY)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt: a speaker, what it has said, the text. Worker thread.

        Raises:
            PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
                `empty_text`, `prompt_too_long`, and those of `models.chatterbox.voice.voice_of`.
        """
        options = check_options(self.spec, request.options)
        check_language(self.spec, request.language)
        if not request.text.strip():
            raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
        text = text_ids(request.text, self.tokenizer)
        voice = voice_of(request, options, self.listener, self.voice)
        said = voice.tokens[:MAX_PROMPT]
        n_rows = 1 + len(said) + len(text) + 1
        n_most = self.spec.backbone.max_positions - n_rows
        if len(text) > MAX_TEXT or n_most < least_frames(self.spec):
            message = f"the text has {len(text)} tokens, at most {MAX_TEXT} are accepted: split it"
            raise PlanError("prompt_too_long", message, "text")
        ready = self._ready.get(voice.key, lambda: self._made_ready(voice))
        ids = torch.zeros(n_rows, 1, dtype=torch.int64)
        ids[1 : 1 + len(said), 0], ids[-1] = said, self.config.start
        rows = self.lm.text_rows(text).cpu()
        embeds = rows.new_zeros(n_rows, rows.shape[1])
        embeds[:1], embeds[1 + len(said) : -1] = ready.rows, rows
        is_given = torch.ones(n_rows, dtype=torch.bool)
        is_given[1 : 1 + len(said)] = is_given[-1] = False
        return PromptPlan(
            ids=ids,
            embeds=embeds,
            embed_mask=is_given,
            state=torch.zeros(self.spec.state_size, dtype=torch.int64),
            max_frames=min(MAX_FRAMES, n_most, frame_limit(request, self.spec, len(text))),
            codec_state=ready.codec_state,
            prefix_key=voice.key,
            prefix_rows=1 + len(said),
            sampling={SPEECH: _sampling(options)},
        )

    def _made_ready(self, voice: Voice) -> ReadyVoice:
        return ReadyVoice(
            rows=self.lm.speaker_row(voice.speaker).cpu(), codec_state=self.codec.seed(voice)
        )

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        rows: Tensor = self.lm.speech_emb(ids[:, 0])
        return rows

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.lm(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the speech tokens and of the end."""
        return [self.lm.speech_head(hidden)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Every row is a frame; once the end is drawn, that and the next ones are silent."""
        n_before = state[:, N_ENDING]
        is_ending = (ids[:, 0] == self.config.stop) | (n_before > 0)
        n_silent = n_before + is_ending
        return Advance(
            rows=ids,
            state=torch.stack([state[:, 0], n_silent], dim=1),
            frames=torch.where(is_ending, SILENCE, ids[:, 0]).unsqueeze(1),
            emits=torch.ones_like(is_ending),
            text_ids=torch.full_like(n_silent, -1),
            is_finished=n_silent == N_SILENT,
            is_starved=torch.zeros_like(is_ending),
        )

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.chatterbox.codec.SpeechCodec.decode`."""
        return self.codec.decode(frames, n_valid, state, is_first, is_last)


def is_in(folder: Path) -> bool:
    """Whether a folder holds this family."""
    return any(any(folder.glob(pattern)) for pattern in LMS)


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub. Raises: `WeightError`."""
    return Needs(weights=(_lm_file(folder), CODEC, VOICE_ENCODER, DEFAULT_VOICE))


def read_spec(folder: Path) -> ModelSpec:
    """The facts of a checkpoint, by the shapes of its tensors. Raises: `WeightError`."""
    tensors, name = read_part(folder, CODEC), _lm_file(folder)
    config = _config(read_tensors(folder / name), tensors, name)
    return turbo_spec(config, make_codec_spec(tensors, source=CODEC))


def load(folder: Path) -> TurboModel:
    """The model of a checkpoint folder, on the CPU in float32. Raises: `WeightError`."""
    tensors, name = read_part(folder, CODEC), _lm_file(folder)
    parts = split_codec(tensors, CODEC)
    weights = read_tensors(folder / name)
    lm = TurboLm(_config(weights, tensors, name), weights, source=name)
    return TurboModel(
        lm=lm,
        codec=codec_of(tensors, parts, CODEC),
        tokenizer=read_gpt2_tokenizer(folder, lm.config.n_text_ids),
        listener=listener_of(folder, parts, CODEC, LM_HEARS_S, lm.config.speaker_size),
        voice=default_voice(folder, lm.config.speaker_size, lm.config.n_codes),
    )


def _lm_file(folder: Path) -> str:
    """Name of the LM's file; of several the newest. Raises: `WeightError`: there is none."""
    names = sorted(path.name for pattern in LMS for path in folder.glob(pattern))
    if not names:
        raise WeightError(f"{folder} has no {' or '.join(LMS)}; {REMEDY}")
    return names[-1]


def _config(weights: Mapping[str, Tensor], codec: Mapping[str, Tensor], name: str) -> TurboConfig:
    if not is_mean_flow(codec):
        raise WeightError(f"{CODEC} is no flow of Turbo: it is not told where a step ends")
    return turbo_config(weights, n_codes=n_speech_tokens(codec, CODEC), source=name)


def _sampling(options: Mapping[str, OptionValue]) -> SamplingParams:
    return SamplingParams(
        temperature=float(options[TEMPERATURE.name]),
        top_p=float(options[TOP_P.name]),
        top_k=int(options[TOP_K.name]),
        repetition_penalty=float(options[REPETITION_PENALTY.name]),
        repetition_window=REPETITION_WINDOW,
    )
