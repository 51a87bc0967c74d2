"""`toy-mixed`: answers with text, then speech, in one id space (as Bagpiper does).

Phases: text, a forced bridge row, audio, drain. Guidance holds in the audio phase alone; its
companion is all-zero rows, made when the audio begins.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.base import Advance, PromptPlan, TextFeed
from models.layers.delay import NEVER, blank_outside, completed_frame, join_history
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    GuidanceSpec,
    ModelSpec,
    OptionSpec,
    PhaseColumn,
    PhaseSpec,
    PlanRequest,
    SamplingParams,
)
from models.toy.base import (
    BOS,
    EOS,
    FRAMES_OPTION,
    PAD,
    ROW,
    SMALL_BACKBONE,
    TEXT_HIGH,
    TEXT_LOW,
    WANTED,
    ToyModel,
    check_request,
    frame_limit,
    mask_logits,
    start_state,
    text_ids,
)
from models.toy.codec import HISTORY

DELAYS = (0, 1, 2)
N_CODEBOOKS = len(DELAYS)
MAX_DELAY = max(DELAYS)
N_CODES = 16
END_OF_TEXT, AUDIO_MARK = TEXT_HIGH, TEXT_HIGH + 1
CODE_LOW = TEXT_HIGH + 2
LETTERS = (TEXT_LOW + ord("a"), TEXT_LOW + ord("z") + 1)
END, TEXT_ROW, TEXT_WANTED, PAST = 3, 4, 5, 6
"""Places in the state, after those of `models.toy.base`; `PAST` is the last `MAX_DELAY` rows."""

_NAMES = tuple(f"codebook{n}" for n in range(N_CODEBOOKS))
_BLANK = PhaseColumn(fill="forced", forced_id=PAD)
_TEXT_SAMPLING = SamplingParams(temperature=0.6, top_k=20)
_AUDIO_SAMPLING = SamplingParams(temperature=0.8, top_k=8)
_CODE = PhaseColumn(fill="sampled", sampling=_AUDIO_SAMPLING)
_N_OTHERS = N_CODEBOOKS - 1
TEXT, BRIDGE, AUDIO, DRAIN = range(4)
"""Phase indices."""

SPEC = ModelSpec(
    name="toy-mixed",
    tasks=("converse",),
    columns=tuple(
        ColumnSpec(
            name=name,
            role="semantic" if n == 0 else "acoustic",
            ids=(0 if n == 0 else CODE_LOW + n * N_CODES, CODE_LOW + (n + 1) * N_CODES),
            pad_id=PAD,
            bos_id=BOS if n == 0 else None,
            delay_rows=DELAYS[n],
        )
        for n, name in enumerate(_NAMES)
    ),
    frame=FrameSpec(
        n_codebooks=N_CODEBOOKS, frame_rate_hz=50.0, sample_rate_hz=16_000, samples_per_frame=320
    ),
    backbone=SMALL_BACKBONE,
    phases=(
        PhaseSpec(
            name="text",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=(LETTERS, (END_OF_TEXT, END_OF_TEXT + 1)),
                    sampling=_TEXT_SAMPLING,
                ),
                *(_BLANK,) * _N_OTHERS,
            ),
            feeds_text=True,
        ),
        PhaseSpec(
            name="bridge",
            columns=(
                PhaseColumn(fill="forced", forced_id=AUDIO_MARK),
                *(_BLANK,) * _N_OTHERS,
            ),
        ),
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=((EOS, EOS + 1), (CODE_LOW, CODE_LOW + N_CODES)),
                    sampling=_AUDIO_SAMPLING,
                ),
                *(_CODE,) * _N_OTHERS,
            ),
            feeds_codec=True,
        ),
        PhaseSpec(name="drain", columns=(_BLANK, *(_CODE,) * _N_OTHERS), feeds_codec=True),
    ),
    guidance=GuidanceSpec(
        scale=2.0, phases=("audio",), columns=_NAMES, companion="zero_rows", entry="phase"
    ),
    codec=CodecSpec(chunk_frames=(5, 10, 25), state=(HISTORY,)),
    state_size=PAST + MAX_DELAY * N_CODEBOOKS,
    gives_text=True,
    languages=("en",),
    options=(
        FRAMES_OPTION,
        OptionSpec(
            name="reply_letters",
            kind="integer",
            default=4,
            description="how many letters of text to answer before speaking",
            minimum=0,
            maximum=1000,
        ),
    ),
    weights_licence="none: random",
    weights_source="made at load",
)


class MixedToy(ToyModel):
    """Text in column 0, then three delayed codebooks."""

    delays: Tensor
    code_lows: Tensor

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=109, shares_table=True)
        self.register_buffer("delays", torch.tensor(DELAYS), persistent=False)
        code_lows = CODE_LOW + N_CODES * torch.arange(N_CODEBOOKS)
        self.register_buffer("code_lows", code_lows, persistent=False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """The user's text in column 0."""
        text = text_ids(request.text)
        options, _ = check_request(SPEC, request)
        column = [BOS, *text, EOS]
        ids = torch.full((len(column), N_CODEBOOKS), PAD)
        ids[:, 0] = torch.tensor(column)
        state = start_state(SPEC, phase="text", wanted=int(options.get("frames", len(text))))
        state[END] = NEVER
        state[TEXT_WANTED] = int(options["reply_letters"])
        n_rows = len(ids) + int(state[TEXT_WANTED]) + 2
        return PromptPlan(ids=ids, state=state, max_frames=frame_limit(SPEC, request, n_rows))

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """Column 0 ends the text and the speech when enough has come, and not before."""
        is_text = (state[:, 0] == TEXT).unsqueeze(1)
        is_text_over = (state[:, TEXT_ROW] >= state[:, TEXT_WANTED]).unsqueeze(1)
        is_audio_over = (state[:, ROW] >= state[:, WANTED]).unsqueeze(1)
        ids = torch.arange(SPEC.columns[0].n_ids, device=state.device)
        is_allowed = torch.where(
            is_text, (ids == END_OF_TEXT) == is_text_over, (ids == EOS) == is_audio_over
        )
        return [mask_logits(logits[0], is_allowed), *logits[1:]]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Move through text, bridge, audio and drain."""
        phase, row, old_end = state[:, 0], state[:, ROW], state[:, END]
        is_text, is_bridge, is_speech = phase == TEXT, phase == BRIDGE, phase >= AUDIO
        is_text_end = is_text & (ids[:, 0] == END_OF_TEXT)
        is_end = (phase == AUDIO) & (ids[:, 0] == EOS)
        end = torch.where(is_end, row, old_end)

        speech = blank_outside(ids, row, end, self.delays, PAD)
        speech = torch.where((row == end).unsqueeze(1) & (self.delays == 0), EOS, speech)
        first = torch.where(is_bridge, AUDIO_MARK, ids[:, 0]).unsqueeze(1)
        other = torch.where(self.delays == 0, first, PAD)
        rows = torch.where(is_speech.unsqueeze(1), speech, other)

        past = join_history(state[:, PAST:], rows)
        frame_idx = row - MAX_DELAY
        next_phase = torch.where(is_text_end, BRIDGE, phase)
        next_phase = torch.where(is_bridge, AUDIO, next_phase)
        next_phase = torch.where(is_end, DRAIN, next_phase)
        is_letter = is_text & ~is_text_end
        head = (next_phase, row + is_speech, state[:, WANTED], end, state[:, TEXT_ROW] + is_letter)
        return Advance(
            rows=rows,
            state=torch.cat(
                [
                    torch.stack([*head, state[:, TEXT_WANTED]], dim=1),
                    past[:, 1:].flatten(1),
                ],
                dim=1,
            ),
            frames=(completed_frame(past, self.delays) - self.code_lows).clamp(0, N_CODES - 1),
            emits=is_speech & (frame_idx >= 0) & (frame_idx < end),
            text_ids=torch.where(is_letter, ids[:, 0], -1),
            is_finished=is_speech & (frame_idx >= end - 1),
            is_starved=torch.zeros_like(is_text),
        )


def load() -> MixedToy:
    """Make the model."""
    return MixedToy()
