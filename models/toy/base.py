"""What all toys share: byte text, random tables, a two-layer decoder, heads, limits, the codec.

A toy's ids are random, its length is not: a request's `frames` option, else the length of its text,
says how many frames it speaks, and the model's own `constrain` makes it stop there. So a test knows
what to expect, and still every id goes through the sampler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.base import Attention, Decoded
from models.errors import PlanError
from models.layers.columns import ColumnHead, ColumnTable
from models.layers.transformer import Decoder
from models.module import ModelModule
from models.options import check_language, check_options, check_voice
from models.spec import BackboneSpec, ModelSpec, OptionSpec, OptionValue, PlanRequest
from models.toy.codec import ToyCodec

PAD, BOS, EOS = 0, 1, 2
TEXT_LOW = 3
TEXT_HIGH = TEXT_LOW + 256
"""Ids `[TEXT_LOW, TEXT_HIGH)` are the bytes of UTF-8 text."""

MAX_TEXT_BYTES = 1024
DEFAULT_MAX_SECONDS = 60.0
ATTENTION_STD = 0.3
"""Gives attention scores a spread of about 3 and its output about four times the residual's."""

ROW, WANTED = 1, 2
"""Places in a stream's state: rows generated in the audio phase, and frames that it shall speak."""

SMALL_BACKBONE = BackboneSpec(
    n_layers=2, n_query_heads=4, n_kv_heads=2, head_dim=12, hidden=32, max_positions=4096
)
"""`head_dim` is not hidden / heads, on purpose."""

FRAMES_OPTION = OptionSpec(
    name="frames",
    kind="integer",
    default=None,
    description="how many frames to speak; by default one for each byte of the text",
    minimum=0,
    maximum=1_000_000,
)


class ToyModel(ModelModule):
    """The parts of a `SpeechModel` that do not differ between toys.

    Args:
        spec: the toy's facts.
        n_codes: codes in each codebook.
        seed: of the weights.
        shares_table: all columns share one id space, one table and one head (as in OpusLM);
            otherwise each column has its own.
    """

    def __init__(
        self, spec: ModelSpec, *, n_codes: int, seed: int, shares_table: bool = False
    ) -> None:
        super().__init__()
        self.spec = spec
        hidden = spec.backbone.hidden
        sizes = [column.n_ids for column in spec.columns]
        if shares_table:
            sizes = [max(column.ids[1] for column in spec.columns)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.decoder = Decoder(spec.backbone, inner=2 * hidden, theta=10_000.0)
            _strengthen_attention(self.decoder)
            tables = [torch.randn(size, hidden) for size in sizes]
            heads = [0.3 * torch.randn(size, hidden) for size in sizes]
            shifts = torch.randn(spec.n_columns, hidden)
        self.table: ColumnTable | None = None
        if shares_table:
            drawn = list(spec.backbone_columns)
            ranges = [[spec.columns[idx].ids] for idx in drawn]
            self.table = ColumnTable(tables[0], is_zero_blank=True)
            self.head = ColumnHead(heads[0], shifts[drawn], ranges)
        else:
            self.tables = nn.ParameterList(tables)
            self.outputs = nn.ParameterList(heads)
        self.codec = ToyCodec(spec.frame, spec.codec, n_codes=n_codes, seed=seed)
        self.requires_grad_(False)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """Sum of the columns' tables; a pad adds nothing, but in the first column of a shared one.

        There it must not vanish: it is the companion's all-zero prompt.
        """
        if self.table is not None:
            shared: Tensor = self.table(ids)
            return shared
        x = ids.new_zeros((), dtype=torch.float32)
        for idx, (column, table) in enumerate(zip(self.spec.columns, self.tables, strict=True)):
            at = (ids[:, idx] - column.ids[0]).clamp(0, table.shape[0] - 1)
            is_pad = ids[:, idx] == column.pad_id
            x = x + torch.where(is_pad.unsqueeze(1), 0.0, table[at])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """See `models.base.SpeechModel.heads`."""
        if self.table is not None:
            logits: list[Tensor] = self.head(hidden)
            return logits
        return [hidden @ self.outputs[idx].T for idx in self.spec.backbone_columns]

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """See `models.base.SpeechModel.decode`."""
        return self.codec.decode(frames, n_valid, state, is_first, is_last)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """UTF-8 text of byte ids; an incomplete last character is held back."""
        raw = bytes(id_ - TEXT_LOW for id_ in ids if TEXT_LOW <= id_ < TEXT_HIGH)
        return raw[: _complete_prefix(raw)].decode("utf-8", errors="replace")


def _strengthen_attention(decoder: Decoder) -> None:
    """Draw larger attention weights, so that every earlier row counts.

    With the usual small ones a toy hardly looks back, and an engine that mixed up its KV pages
    would draw the same ids.
    """
    for name, parameter in decoder.named_parameters():
        if "attention.qkv" in name or "attention.out" in name:
            nn.init.normal_(parameter, std=ATTENTION_STD)


def text_ids(text: str, *, may_be_empty: bool = False) -> list[int]:
    """Ids of the UTF-8 bytes of `text`.

    Raises:
        PlanError: `empty_text` or `text_too_long`.
    """
    if not text.strip() and not may_be_empty:
        raise PlanError("empty_text", "the text is empty: there is nothing to say", "text")
    raw = text.encode("utf-8", errors="replace")
    if len(raw) > MAX_TEXT_BYTES:
        message = f"the text has {len(raw)} bytes, at most {MAX_TEXT_BYTES} are accepted"
        raise PlanError("text_too_long", message, "text")
    return [TEXT_LOW + byte for byte in raw]


def check_request(spec: ModelSpec, request: PlanRequest) -> tuple[dict[str, OptionValue], int]:
    """The request's options with their defaults, and the index of its voice (0 without voices).

    Raises:
        PlanError: an option, the voice or the language is not one of the model's.
    """
    check_language(spec, request.language)
    voice = check_voice(spec, request.voice)
    voice_idx = 0 if voice is None else spec.voices.index(voice)
    return check_options(spec, request.options), voice_idx


def frame_limit(spec: ModelSpec, request: PlanRequest, n_prompt_rows: int) -> int:
    """Cap on generated frames: what the caller allows, and what the positions leave room for."""
    max_seconds = DEFAULT_MAX_SECONDS if request.max_seconds is None else request.max_seconds
    by_time = math.ceil(max_seconds * spec.frame.frame_rate_hz)
    max_delay = max(column.delay_rows for column in spec.columns)
    n_rows = spec.backbone.max_positions - n_prompt_rows - max_delay - 1
    return max(1, min(by_time, n_rows // spec.frame.rows_per_frame))


def start_state(spec: ModelSpec, *, phase: str, wanted: int) -> Tensor:
    """A stream's state before its first row."""
    state = torch.zeros(spec.state_size, dtype=torch.int64)
    state[0] = spec.phase_idx(phase)
    state[WANTED] = wanted
    return state


def mask_logits(logits: Tensor, is_allowed: Tensor) -> Tensor:
    """`logits` with -inf where `is_allowed` is false; both `(B, V)`."""
    return torch.where(is_allowed, logits, -torch.inf)


def _complete_prefix(raw: bytes) -> int:
    """Length of `raw` without an unfinished UTF-8 character at its end."""
    for n_back in range(1, min(3, len(raw)) + 1):
        lead = raw[-n_back]
        if lead >= 0xC0:
            n_needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(raw) - n_back if n_needed > n_back else len(raw)
        if lead < 0x80:
            break
    return len(raw)
