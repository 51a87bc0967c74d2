"""`toy-audio-in`: hears audio rows, answers text and speech in turn in one column (as GLM-4-Voice).

The user's audio becomes prompt rows of its own (embeds and mask). Three letters of text alternate
with four frames of speech until both are said.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.audio.spoken import NAME, read_spoken, spoken_option
from models.base import Advance, PromptPlan, TextFeed
from models.errors import PlanError
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FrameSpec,
    ModelSpec,
    OptionSpec,
    OptionValue,
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
from models.toy.codec import HISTORY, held_codes

N_CODES = 64
AUDIO_MARK = TEXT_HIGH
CODE_LOW = TEXT_HIGH + 1
CODE_HIGH = CODE_LOW + N_CODES
LETTERS = (TEXT_LOW + ord("a"), TEXT_LOW + ord("z") + 1)
TEXT_ROW, TEXT_WANTED, RUN = 3, 4, 5
"""Places in the state: letters said, letters to say, rows of the present run."""
TEXT_RUN, AUDIO_RUN = 3, 4
HEARD_HZ = 16_000
MAX_AUDIO_S = 30.0
N_BANDS = 8
PART_SAMPLES = 160
"""A row hears 80 ms, in eight parts."""
TEXT, AUDIO = range(2)
"""Phase indices."""

_SAMPLING = SamplingParams(temperature=0.8, top_p=0.8)
SPEC = ModelSpec(
    name="toy-audio-in",
    tasks=("converse",),
    columns=(ColumnSpec(name="ids", role="semantic", ids=(0, CODE_HIGH), pad_id=PAD, bos_id=BOS),),
    frame=FrameSpec(
        n_codebooks=1, frame_rate_hz=50.0, sample_rate_hz=22_050, samples_per_frame=441
    ),
    backbone=SMALL_BACKBONE,
    phases=(
        PhaseSpec(
            name="text",
            columns=(PhaseColumn(fill="sampled", allowed=(LETTERS,), sampling=_SAMPLING),),
            feeds_text=True,
        ),
        PhaseSpec(
            name="audio",
            columns=(
                PhaseColumn(
                    fill="sampled",
                    allowed=((EOS, EOS + 1), (CODE_LOW, CODE_HIGH)),
                    sampling=_SAMPLING,
                ),
            ),
            feeds_codec=True,
        ),
    ),
    codec=CodecSpec(chunk_frames=(3, 9), lookahead_frames=1, state=(HISTORY, held_codes(1))),
    state_size=6,
    takes_audio=True,
    gives_text=True,
    languages=("en",),
    options=(
        FRAMES_OPTION,
        spoken_option(MAX_AUDIO_S),
        OptionSpec(
            name="reply_letters",
            kind="integer",
            default=6,
            description="how many letters of text to answer",
            minimum=0,
            maximum=1000,
        ),
    ),
    weights_licence="none: random",
    weights_source="made at load",
)


class AudioInToy(ToyModel):
    """One column; audio rows in the prompt come from a small fixed encoder."""

    band_table: Tensor

    def __init__(self) -> None:
        super().__init__(SPEC, n_codes=N_CODES, seed=113)
        generator = torch.Generator().manual_seed(114)
        table = torch.randn(N_BANDS, SPEC.backbone.hidden, generator=generator)
        self.register_buffer("band_table", table, persistent=False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Start mark, audio mark, one row for each 80 ms of audio, the text (may be empty)."""
        options, _ = check_request(SPEC, request)
        heard = _audio_bands(request, options) @ self.band_table.cpu()
        text = text_ids(request.text, may_be_empty=True)
        before, after = [BOS, AUDIO_MARK], [*text, EOS]
        ids = torch.tensor([*before, *[PAD] * len(heard), *after]).unsqueeze(1)
        embeds = torch.zeros(len(ids), SPEC.backbone.hidden)
        embeds[len(before) : len(before) + len(heard)] = heard
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[len(before) : len(before) + len(heard)] = True
        n_letters = int(options["reply_letters"])
        state = start_state(
            SPEC,
            phase="text" if n_letters else "audio",
            wanted=int(options.get("frames", len(heard))),
        )
        state[TEXT_WANTED] = n_letters
        return PromptPlan(
            ids=ids,
            embeds=embeds,
            embed_mask=mask,
            state=state,
            max_frames=frame_limit(SPEC, request, len(ids) + n_letters),
        )

    def constrain(self, state: Tensor, logits: list[Tensor], feed: TextFeed) -> list[Tensor]:
        """In the audio phase, the end when all frames are there, and only then."""
        is_over = (state[:, ROW] >= state[:, WANTED]).unsqueeze(1)
        is_end = torch.arange(CODE_HIGH, device=state.device) == EOS
        is_text = (state[:, 0] == TEXT).unsqueeze(1)
        return [mask_logits(logits[0], is_text | (is_end == is_over))]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Count the run; change over when it is full or the other side has all that is left."""
        is_text = state[:, 0] == TEXT
        is_end = ~is_text & (ids[:, 0] == EOS)
        is_frame = ~is_text & ~is_end
        n_frames, n_letters = state[:, ROW] + is_frame, state[:, TEXT_ROW] + is_text
        run = state[:, RUN] + 1
        is_turn_kept = torch.where(is_text, run < TEXT_RUN, run >= AUDIO_RUN)
        wants_text = is_turn_kept | (n_frames >= state[:, WANTED])
        phase = torch.where(wants_text & (n_letters < state[:, TEXT_WANTED]), TEXT, AUDIO)
        run = torch.where(phase == state[:, 0], run, 0)
        head = (phase, n_frames, state[:, WANTED], n_letters, state[:, TEXT_WANTED], run)
        return Advance(
            rows=ids,
            state=torch.stack(head, dim=1),
            frames=(ids - CODE_LOW).clamp(0, N_CODES - 1),
            emits=is_frame,
            text_ids=torch.where(is_text, ids[:, 0], -1),
            is_finished=is_end,
            is_starved=torch.zeros_like(is_end),
        )


def load() -> AudioInToy:
    """Make the model."""
    return AudioInToy()


def _audio_bands(request: PlanRequest, options: Mapping[str, OptionValue]) -> Tensor:
    """Loudness of the eight parts of each audio row: `(n_rows, N_BANDS)`."""
    sound = read_spoken(request, options, HEARD_HZ, most_s=MAX_AUDIO_S)
    if sound is None:
        raise PlanError("missing_audio", f"{SPEC.name} answers audio; none was sent", NAME)
    pcm = torch.from_numpy(sound.pcm)
    padded = torch.nn.functional.pad(pcm, (0, -len(pcm) % (N_BANDS * PART_SAMPLES)))
    return padded.view(-1, N_BANDS, PART_SAMPLES).square().mean(-1).sqrt()
