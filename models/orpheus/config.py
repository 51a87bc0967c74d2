"""Shape, ids and facts of an `orpheus` checkpoint. Everything is read from its files; no weights.

Source: canopyai/Orpheus-TTS, `orpheus_tts_pypi/orpheus_tts` (Apache-2.0): prompt form, slot order,
sampling defaults. Ids are looked up by name in the tokenizer, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from models.checkpoint import read_config
from models.codecs.snac import REACH, SnacConfig, read_snac_config
from models.codecs.windowed import windowed_codec
from models.errors import WeightError
from models.hugging_face import LlamaConfig, llama_config, read_tokenizer
from models.options import number_option
from models.spec import (
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

N_SLOTS: Final = 7
"""Rows of a frame: one code of the coarsest level, two and four of the others."""
SLOT_ORDER: Final = (0, 1, 4, 2, 3, 5, 6)
"""Slot of each code of a frame, codes by level: rows interleave the levels in time."""
CODES_PER_LEVEL: Final = (1, 2, 4)
COLUMN: Final = "ids"
CODES: Final = 2
"""Place in a stream's state of the codes of the unfinished frame; place 1 counts rows."""
STATE_SIZE: Final = CODES + N_SLOTS
MAX_POSITIONS: Final = 4096
"""Rows of a stream: 49 s of speech; the text of a unit is far shorter. The checkpoint was trained
for 131072, and a page pool for such streams would not fit anywhere."""
CHUNK_FRAMES: Final = (1, 2, 4, 8, 16)
SNAC_FOLDERS: Final = ("snac_24khz", "snac")
"""Where the detokenizer's checkpoint lies within the model's folder."""

VOICES: Final = ("tara", "zoe", "zac", "jess", "leo", "mia", "julia", "leah")
"""Names that the published checkpoint was tuned on; its files do not list them."""

SOUND_TAGS: Final = ("laugh", "chuckle", "sigh", "cough", "sniffle", "groan", "yawn", "gasp")
"""Sounds that the published checkpoint was tuned on, as `<laugh>` in the text."""

TEMPERATURE: Final = number_option(
    "temperature",
    0.6,
    0.0,
    2.0,
    "of the speech codes; 0 takes the likeliest and soon repeats",
)
TOP_P: Final = number_option(
    "top_p", 0.8, 0.01, 1.0, "share of the probability that may be drawn from"
)
REPETITION_PENALTY: Final = number_option(
    "repetition_penalty",
    1.3,
    1.0,
    2.0,
    "against loops; below 1.1 the published weights do loop",
)
REPETITION_WINDOW: Final = 256
"""Rows that the penalty looks back: 3 s. The reference looks back to the start of the prompt."""


FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=VOICES,
    languages=("en",),
    options=(TEMPERATURE, TOP_P, REPETITION_PENALTY),
    weights_licence="Apache-2.0 (LM, under the Llama 3.2 licence's terms), MIT (SNAC)",
    weights_source="canopylabs/orpheus-3b-0.1-ft and hubertsiuzdak/snac_24khz",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrpheusIds:
    """Ids with a meaning.

    Args:
        text_start: opens a text.
        text_end: closes one.
        human_start: opens the human's part.
        human_end: closes it.
        ai_start: opens the model's part.
        speech_start: opens the speech.
        speech_end: closes it: the stop id.
        first_code: code 0 of slot 0; slots follow one another, each with all its codes.
    """

    text_start: int
    text_end: int
    human_start: int
    human_end: int
    ai_start: int
    speech_start: int
    speech_end: int
    first_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrpheusConfig:
    """A checkpoint: the LM (`is_tied`: its head is its table), its ids, the detokenizer."""

    llama: LlamaConfig
    is_tied: bool
    ids: OrpheusIds
    snac: SnacConfig

    @property
    def id_range(self) -> tuple[int, int]:
        """Ids from the stop id to the last code: the only part of the head that is computed."""
        return self.ids.speech_end, self.ids.first_code + N_SLOTS * self.snac.n_codes


def is_orpheus(folder: Path) -> bool:
    """Whether a folder holds this family: a Llama whose tokenizer has speech codes."""
    if not (folder / "config.json").is_file() or not (folder / "tokenizer.json").is_file():
        return False
    architectures = read_config(folder / "config.json").optional("architectures")
    if architectures != ["LlamaForCausalLM"]:
        return False
    return read_tokenizer(folder).token_to_id(_custom(0)) is not None


def read_orpheus_config(folder: Path) -> OrpheusConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key or the token."""
    snac = read_snac_config(snac_folder(folder))
    if snac.codes_per_frame != CODES_PER_LEVEL:
        raise WeightError(
            f"{snac_folder(folder)}: a frame has {snac.codes_per_frame} codes a level, "
            f"Orpheus writes {CODES_PER_LEVEL}"
        )
    stated = read_config(folder / "config.json")
    config = OrpheusConfig(
        llama=llama_config(stated, max_positions=MAX_POSITIONS),
        is_tied=stated.flag("tie_word_embeddings"),
        ids=_read_ids(read_tokenizer(folder)),
        snac=snac,
    )
    if config.id_range[1] > config.llama.n_ids:
        raise WeightError(
            f"config.json: vocab_size {config.llama.n_ids} has no room for "
            f"{N_SLOTS} slots of {snac.n_codes} codes from id {config.ids.first_code} on"
        )
    return config


def snac_folder(folder: Path) -> Path:
    """Where the detokenizer lies. Raises: `WeightError`, it says what to fetch."""
    for name in SNAC_FOLDERS:
        if (folder / name / "config.json").is_file():
            return folder / name
    raise WeightError(
        f"{folder} has no detokenizer: put the checkpoint hubertsiuzdak/snac_24khz "
        f"into {folder / SNAC_FOLDERS[0]}"
    )


def model_spec(config: OrpheusConfig) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    low, high = config.id_range
    snac, ids = config.snac, config.ids
    speech = PhaseColumn(
        fill="sampled",
        allowed=((ids.speech_end, ids.speech_end + 1), (ids.first_code, high)),
        sampling=SamplingParams(
            temperature=float(TEMPERATURE.default or 0.0),
            top_p=float(TOP_P.default or 1.0),
            repetition_penalty=float(REPETITION_PENALTY.default or 1.0),
            repetition_window=REPETITION_WINDOW,
        ),
    )
    return ModelSpec(
        name="orpheus",
        tasks=FACTS.tasks,
        columns=(ColumnSpec(name=COLUMN, role="semantic", ids=(low, high), pad_id=low),),
        frame=FrameSpec(
            n_codebooks=N_SLOTS,
            rows_per_frame=N_SLOTS,
            frame_rate_hz=snac.sample_rate_hz / snac.samples_per_frame,
            sample_rate_hz=snac.sample_rate_hz,
            samples_per_frame=snac.samples_per_frame,
        ),
        backbone=config.llama.backbone,
        phases=(PhaseSpec(name="speech", columns=(speech,), feeds_codec=True),),
        codec=windowed_codec(REACH, CHUNK_FRAMES),
        state_size=STATE_SIZE,
        sound_tags=SOUND_TAGS,
        voices=FACTS.voices,
        languages=FACTS.languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _read_ids(tokenizer: Tokenizer) -> OrpheusIds:
    def named(token: str) -> int:
        found = tokenizer.token_to_id(token)
        if found is None:
            raise WeightError(f"tokenizer.json has no token {token!r}: this is no Orpheus")
        return int(found)

    return OrpheusIds(
        text_start=named("<|begin_of_text|>"),
        text_end=named("<|eot_id|>"),
        speech_start=named(_custom(1)),
        speech_end=named(_custom(2)),
        human_start=named(_custom(3)),
        human_end=named(_custom(4)),
        ai_start=named(_custom(5)),
        first_code=named(_custom(10)),
    )


def _custom(number: int) -> str:
    return f"<custom_token_{number}>"
