"""What a model states about itself, and the form of a request. No torch: the gateway reads this.

Words: see `models.base`. A `ModelSpec` is frozen and can be read without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from models.errors import SpecError
from models.sampling import MAX_REPETITION_WINDOW as MAX_REPETITION_WINDOW
from models.sampling import SamplingParams as SamplingParams

ColumnRole = Literal["text", "semantic", "acoustic", "control"]
ColumnFill = Literal["sampled", "depth", "forced", "derived"]
StateDtype = Literal["float32", "float16", "int64"]
OptionValue = str | int | float | bool

SPOKEN_INPUT: Final = "input_audio"
"""The option of models that hear: what the user says, a file (`models.audio.spoken`)."""
PHASE_COLUMN = 0
"""`state[:, PHASE_COLUMN]` is the stream's phase index; the rest of a state row is the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """One column of a row.

    Args:
        name: unique within the model.
        role: what its ids mean.
        ids: half-open range `[low, high)` of ids that the column can hold. Logits of the column
            cover exactly this range: logit j is id `low + j`.
        pad_id: id that stands for "nothing here"; may lie outside `ids` (it is never sampled then).
        bos_id: id that opens the column, if it has one.
        delay_rows: rows by which the column lags behind the frame it belongs to.
    """

    name: str
    role: ColumnRole
    ids: tuple[int, int]
    pad_id: int
    bos_id: int | None = None
    delay_rows: int = 0

    @property
    def n_ids(self) -> int:
        """Number of ids (V_c)."""
        return self.ids[1] - self.ids[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSpec:
    """How rows become codec frames, and the two rates.

    Args:
        n_codebooks: codes in a frame (Q).
        rows_per_frame: rows that one frame takes (7 for one interleaved stream, 1 otherwise).
        frame_rate_hz: frames per second of audio.
        sample_rate_hz: of the PCM that the codec gives.
        samples_per_frame: PCM samples of a frame; exact.
    """

    n_codebooks: int
    rows_per_frame: int = 1
    frame_rate_hz: float
    sample_rate_hz: int
    samples_per_frame: int

    def __post_init__(self) -> None:
        """Check that the two rates agree."""
        expected = self.sample_rate_hz / self.samples_per_frame
        if abs(self.frame_rate_hz - expected) > 0.01:
            raise SpecError(
                f"frame_rate_hz {self.frame_rate_hz} is not rate/samples {expected:.3f}"
            )

    @property
    def frame_s(self) -> float:
        """Seconds of audio in one frame."""
        return self.samples_per_frame / self.sample_rate_hz


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneSpec:
    """Shape of the model over time. `head_dim` is stated, never derived."""

    n_layers: int
    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int
    max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthSpec:
    """Shape of the small model over the codebooks of one frame.

    Position 0 of the depth sequence is made from the backbone's hidden state; position i >= 1 from
    the id of the i-th column in `columns_before + columns`. The head at position i >= 1 gives
    `columns[i - 1]`. `first_column` is the backbone-sampled column that position 1 embeds.
    """

    first_column: str
    columns: tuple[str, ...]
    n_layers: int
    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    hidden: int

    @property
    def n_positions(self) -> int:
        """Depth rows per frame: the hidden state, then one row for each column but the last."""
        return 1 + len(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseColumn:
    """What happens to one column in one phase.

    Args:
        fill: `sampled` from the backbone's head, `depth` by the depth model, `forced` to
            `forced_id`, or `derived`: written by `advance` from the stream's state.
        allowed: half-open id ranges that may be sampled; empty means the whole column.
        forced_id: the id, for `forced`.
        sampling: defaults; a request may override them.
    """

    fill: ColumnFill
    allowed: tuple[tuple[int, int], ...] = ()
    forced_id: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpec:
    """A named mode of generation (text, audio, drain, ...).

    Args:
        name: unique within the model.
        columns: one `PhaseColumn` for each column of the model, in order.
        feeds_codec: frames completed in this phase reach the codec.
        feeds_text: ids of the text column reach the text output.
    """

    name: str
    columns: tuple[PhaseColumn, ...]
    feeds_codec: bool = False
    feeds_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidanceSpec:
    """Classifier-free guidance by a companion sequence: `u + scale * (c - u)` on raw logits.

    Args:
        scale: default; 1 turns guidance off (no companion is made).
        phases: names of the phases that are guided.
        columns: names of the columns whose logits are merged.
        companion: `own_rows`: the plan carries the companion's prompt; `zero_rows`: as many
            all-zero rows as the stream has positions at the entry of the first guided phase.
        entry: when the companion is made: at `start`, or lazily at `phase`.
    """

    scale: float
    phases: tuple[str, ...]
    columns: tuple[str, ...]
    companion: Literal["own_rows", "zero_rows"]
    entry: Literal["start", "phase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """One tensor of per-stream codec state: what must survive from chunk to chunk, no scratch."""

    name: str
    shape: tuple[int, ...]
    dtype: StateDtype = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSpec:
    """The detokenizer's side of the contract.

    Args:
        chunk_frames: allowed numbers of new frames in a call, ascending: the ramp.
        left_context_frames: frames before the chunk that must be passed again (0 where state
            carries everything).
        lookahead_frames: frames that a call holds back until later frames or the end are known.
            The first call gives `F - lookahead_frames` frames of audio, the last gives the rest.
        state: per-stream tensors that `decode` takes and returns.
        max_batch: most streams in one call.
        first_frames: the ramp of a first call, where it is another: a codec whose chunks lie on a
            grid is brought onto it so.
        last_room_frames: frames by which a last call must be larger than what it brings: the room
            of those that calls hold back and a last one does not.
    """

    chunk_frames: tuple[int, ...]
    left_context_frames: int = 0
    lookahead_frames: int = 0
    state: tuple[StateSpec, ...] = ()
    max_batch: int = 16
    first_frames: tuple[int, ...] = ()
    last_room_frames: int = 0

    def __post_init__(self) -> None:
        """Check both ramps."""
        if not self.chunk_frames:
            raise SpecError("chunk_frames must not be empty")
        for name, sizes in (("chunk", self.chunk_frames), ("first", self.first_frames)):
            if list(sizes) != sorted(set(sizes)):
                raise SpecError(f"{name}_frames {sizes} must ascend")
            if sizes and sizes[0] < 1:
                raise SpecError(f"{name}_frames {sizes} must be positive")
            # Fewer frames than the smallest size can only go in a last call.
            if sizes and sizes[-1] < sizes[0] - 1 + self.last_room_frames:
                raise SpecError(f"{name}_frames {sizes} leave no room for a last call")

    def sizes(self, chunk_idx: int) -> tuple[int, ...]:
        """Allowed numbers of new frames in a stream's call, ascending; it had `chunk_idx` calls."""
        return self.first_frames if chunk_idx == 0 and self.first_frames else self.chunk_frames

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """Of first calls and of others, ascending."""
        return tuple(sorted({*self.first_frames, *self.chunk_frames}))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """A typed request option. `kind` names the JSON type that a client must send.

    `audio` is a string: a sound file in base64.
    """

    name: str
    kind: Literal["string", "number", "integer", "boolean", "audio"]
    default: OptionValue | None
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """What is the same for all checkpoints of a family; the rest is in their files."""

    tasks: tuple[Literal["speak", "converse", "text"], ...]
    voices: tuple[str, ...]
    languages: tuple[str, ...]
    options: tuple[OptionSpec, ...]
    weights_licence: str
    weights_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything about a model that can be known without its weights.

    `state_size` is S, the length of a stream's integer state (see `PHASE_COLUMN`). `text_capacity`
    is the number of streamed text ids that a stream can hold; 0 where text cannot be streamed in.
    `sound_tags` are names that the model makes a sound of where they stand in angle brackets
    (`laugh`); other tags never reach a model. With one of the `whole_text_options` a text is taken
    whole all the same. A model that `keeps_turns` goes on from the rows of a conversation, so that
    a further turn runs what is new alone; its embedding of a row does not depend on the phase.
    `watermark` names the mark in its sound, if there is one.
    """

    name: str
    tasks: tuple[Literal["speak", "converse", "text"], ...]
    columns: tuple[ColumnSpec, ...]
    frame: FrameSpec
    backbone: BackboneSpec
    phases: tuple[PhaseSpec, ...]
    codec: CodecSpec
    state_size: int
    depth: DepthSpec | None = None
    guidance: GuidanceSpec | None = None
    text_capacity: int = 0
    whole_text_options: tuple[str, ...] = ()
    sound_tags: tuple[str, ...] = ()
    takes_audio: bool = False
    gives_text: bool = False
    keeps_turns: bool = False
    voices: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    weights_licence: str = ""
    weights_source: str = ""
    watermark: str = ""

    def __post_init__(self) -> None:
        """Check that names exist and lengths agree."""
        for phase in self.phases:
            if len(phase.columns) != len(self.columns):
                raise SpecError(f"phase {phase.name!r} must state all {len(self.columns)} columns")
        names = {column.name for column in self.columns}
        wanted: set[str] = set()
        if self.depth is not None:
            wanted |= {self.depth.first_column, *self.depth.columns}
        if self.guidance is not None:
            wanted |= set(self.guidance.columns)
            unknown = set(self.guidance.phases) - {phase.name for phase in self.phases}
            if unknown:
                raise SpecError(f"guidance names unknown phases {sorted(unknown)}")
        if wanted - names:
            raise SpecError(f"unknown columns {sorted(wanted - names)}")

    @property
    def n_columns(self) -> int:
        """K."""
        return len(self.columns)

    def streams_text(self, options: Mapping[str, OptionValue]) -> bool:
        """Whether a request with these options can be given its text while it is spoken."""
        return self.text_capacity > 0 and not any(n in options for n in self.whole_text_options)

    def hears(self, options: Mapping[str, OptionValue]) -> bool:
        """Whether a request with these options brings speech, which is answered with its text."""
        return self.takes_audio and SPOKEN_INPUT in options

    def answers(self, options: Mapping[str, OptionValue]) -> bool:
        """Whether the text of a request with these options is answered, and not read out."""
        return "speak" not in self.tasks or self.hears(options)

    def column_idx(self, name: str) -> int:
        """Index of the column called `name`."""
        return [column.name for column in self.columns].index(name)

    def phase_idx(self, name: str) -> int:
        """Index of the phase called `name`."""
        return [phase.name for phase in self.phases].index(name)

    @property
    def backbone_columns(self) -> tuple[int, ...]:
        """Indices of the columns that `heads` gives logits for: sampled in at least one phase."""
        return tuple(
            idx
            for idx in range(self.n_columns)
            if any(phase.columns[idx].fill == "sampled" for phase in self.phases)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    Args:
        role: who.
        text: written, transcribed or spoken.
        audio: of a user who spoke, as `PlanRequest.audio`, for models that keep turns.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    audio: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a caller asks of a model, already typed; the engine and the gateway share this form.

    Args:
        text: what to speak, or the user's text.
        history: `(T, K)` rows of the conversation so far, for models that keep turns: those of an
            earlier stream, as its end told them.
        messages: the conversation before `text` and behind `history`, oldest first, for models that
            answer in text; its last message is the one to answer where `text` is empty.
        voice: one of the spec's voices; None takes the first.
        language: one of the spec's languages; None takes the first.
        options: values by option name, checked against the spec by `models.options`.
        audio: user audio or reference, float32 mono `(n_samples,)` at `audio_rate_hz`.
        seed: of the stream's random draws.
        max_seconds: cap on the generated audio; None takes the model's own.
        is_text_final: False when more text will come by `extend`.
    """

    text: str
    history: npt.NDArray[np.int64] | None = None
    messages: tuple[Message, ...] = ()
    voice: str | None = None
    language: str | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    audio: npt.NDArray[np.float32] | None = None
    audio_rate_hz: int | None = None
    seed: int = 0
    max_seconds: float | None = None
    is_text_final: bool = True
