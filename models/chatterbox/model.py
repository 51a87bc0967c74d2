"""`chatterbox`, put together to the contract of `models.base`: settings, text, then speech tokens.

Unlike the reference, what is no speech token is never drawn (there it is drawn, heard by the LM and
left out), and the penalty on repetition looks back 256 rows and not at the id that begins the
speech. An end that the reference's older version forces upon repetitions is not here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.audio.cache import ContentCache
from models.base import Advance, Attention, Decoded, PromptPlan, TextFeed
from models.chatterbox.codec import SpeechCodec
from models.chatterbox.config import (
    CFG_WEIGHT,
    EXAGGERATION,
    MIN_P,
    N_OPENING,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    ROW,
    SPEECH,
    TEMPERATURE,
    TOP_P,
    model_spec,
)
from models.chatterbox.lm import SpeechLm
from models.chatterbox.text import TextReader
from models.chatterbox.voice import MAX_READY, Listener, ReadyVoice, Voice, voice_of
from models.errors import PlanError
from models.limits import frame_limit
from models.module import ModelModule
from models.options import check_language, check_options
from models.spec import OptionValue, PlanRequest, SamplingParams


class ChatterboxModel(ModelModule):
    """The functions of the model.

    Args:
        name: of the family.
        lm: writes speech tokens.
        codec: makes sound of them.
        reader: reads text.
        languages: that it is asked for.
        listener: hears the voices of recordings.
        voice: speaks where no recording is given; None: one must be.
    """

    def __init__(
        self,
        name: str,
        *,
        lm: SpeechLm,
        codec: SpeechCodec,
        reader: TextReader,
        languages: tuple[str, ...],
        listener: Listener,
        voice: Voice | None,
    ) -> None:
        super().__init__()
        self.config = lm.config
        self.spec = model_spec(name, lm.config, codec.spec, languages)
        self.lm, self.codec, self.listener = lm, codec, listener
        self.reader = reader
        self.voice = voice
        self._ready: ContentCache[ReadyVoice] = ContentCache(MAX_READY)

    @torch.inference_mode()
    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt, and the companion's, which knows of the text its length alone.

        Raises:
            PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
                `empty_text`, `prompt_too_long`, `unsupported_characters`, and those of
                `models.chatterbox.voice.voice_of`.
        """
        options = check_options(self.spec, request.options)
        language = check_language(self.spec, request.language)
        if not request.text.strip():
            raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
        text = self.reader.ids(request.text, language or self.spec.languages[0])
        n_most = self.config.n_text_positions
        if len(text) > n_most:
            message = f"the text has {len(text)} tokens, at most {n_most} are accepted: split it"
            raise PlanError("prompt_too_long", message, "text")
        if max(text) >= self.config.n_text_ids:
            message = "the text has characters that this checkpoint has no rows for"
            raise PlanError("unsupported_characters", message, "text")
        voice = voice_of(request, options, self.listener, self.voice)
        ready = self._ready.get(voice.key, lambda: self._made_ready(voice))
        exaggeration, weight = float(options[EXAGGERATION.name]), float(options[CFG_WEIGHT.name])
        settings = torch.cat([ready.rows, self.lm.feeling_row(exaggeration).cpu()])
        max_frames = min(self.config.max_frames, frame_limit(request, self.spec, len(text)))
        told, blind = (
            self._prompt(settings, rows.cpu(), f"{voice.key}/{exaggeration}", max_frames)
            for rows in self.lm.text_rows(text)
        )
        return PromptPlan(
            ids=told.ids,
            embeds=told.embeds,
            embed_mask=told.embed_mask,
            state=told.state,
            max_frames=max_frames,
            codec_state=ready.codec_state,
            prefix_key=told.prefix_key,
            prefix_rows=told.prefix_rows,
            companion=blind if weight else None,
            # Theirs is c + w * (c - u).
            guidance_scale=1.0 + weight,
            sampling={SPEECH: _sampling(options)},
        )

    def _made_ready(self, voice: Voice) -> ReadyVoice:
        return ReadyVoice(
            rows=self.lm.voice_rows(voice.speaker, voice.tokens).cpu(),
            codec_state=self.codec.seed(voice),
        )

    def _prompt(
        self, settings: Tensor, text: Tensor, prefix_key: str, max_frames: int
    ) -> PromptPlan:
        """Settings and text as rows that are given, and twice the id that begins the speech."""
        n_given = len(settings) + len(text)
        ids = torch.zeros(n_given + N_OPENING, 2, dtype=torch.int64)
        ids[n_given:, 0] = self.config.start
        return PromptPlan(
            ids=ids,
            embeds=torch.cat([settings, text, text.new_zeros(N_OPENING, text.shape[1])]),
            embed_mask=torch.arange(len(ids)) < n_given,
            state=torch.zeros(self.spec.state_size, dtype=torch.int64),
            max_frames=max_frames,
            prefix_key=prefix_key,
            prefix_rows=len(settings),
        )

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """A speech token at its place in the speech."""
        return self.lm.speech_rows(ids[:, 0], ids[:, 1])

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.lm(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the speech tokens and of the end."""
        return [self.lm.head(hidden)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Every row is a frame, until the end; the next one stands a place further on."""
        row = state[:, ROW] + 1
        is_end = ids[:, 0] == self.config.stop
        return Advance(
            rows=torch.stack([ids[:, 0], row], dim=1),
            state=torch.stack([state[:, 0], row], dim=1),
            frames=ids[:, :1],
            emits=~is_end,
            text_ids=torch.full_like(row, -1),
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
        """See `models.chatterbox.codec.SpeechCodec.decode`."""
        return self.codec.decode(frames, n_valid, state, is_first, is_last)


def _sampling(options: Mapping[str, OptionValue]) -> SamplingParams:
    return SamplingParams(
        temperature=float(options[TEMPERATURE.name]),
        min_p=float(options[MIN_P.name]),
        top_p=float(options[TOP_P.name]),
        repetition_penalty=float(options[REPETITION_PENALTY.name]),
        repetition_window=REPETITION_WINDOW,
    )
