"""Shape, ids and facts of a `csm` checkpoint. Everything is read from its files; no weights.

Source: SesameAILabs/csm, `generator.py` (Apache-2.0), and `transformers` 5, `CsmConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from models.audio.reference import REFERENCE_AUDIO, REFERENCE_TEXT
from models.checkpoint import read_config
from models.codecs.mimi_config import MimiConfig, mimi_config
from models.errors import WeightError
from models.hugging_face import LlamaConfig, depth_spec, llama_config, read_tokenizer
from models.options import integer_option, number_option
from models.spec import (
    CodecSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

MAX_POSITIONS: Final = 2048
"""Rows of a stream: what the published checkpoint was trained on."""
TEXT_COLUMN: Final = "text"
STATE_SIZE: Final = 1
VOICES: Final = ("0", "1", "2", "3")
"""Speakers have numbers, and sound as the reference audio of the same number does; without one, a
number means no particular voice."""

TEMPERATURE: Final = number_option(
    "temperature", 0.9, 0.0, 2.0, "of the codes; 0 takes the likeliest"
)
TOP_K: Final = integer_option(
    "top_k", 50, 0, 2048, "codes that may be drawn, the likeliest first; 0: all"
)


FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=VOICES,
    languages=("en",),
    options=(TEMPERATURE, TOP_K, REFERENCE_AUDIO, REFERENCE_TEXT),
    weights_licence="Apache-2.0 (LM), CC-BY-4.0 (Mimi)",
    weights_source="sesame/csm-1b",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsmConfig:
    """A checkpoint.

    Args:
        backbone: the model over frames; its `n_ids` are those of an audio column.
        depth: the model over the codes of a frame.
        mimi: the codec.
        n_text_ids: of the text table.
        bos_id: opens a text.
        eos_id: closes a text.
        eos_code: a frame of this code in every column ends the speech.
    """

    backbone: LlamaConfig
    depth: LlamaConfig
    mimi: MimiConfig
    n_text_ids: int
    bos_id: int
    eos_id: int
    eos_code: int

    @property
    def n_codebooks(self) -> int:
        """Codes in a frame."""
        return self.mimi.n_codebooks

    @property
    def no_text(self) -> int:
        """Stands in the text column of an audio row."""
        return self.n_text_ids

    @property
    def no_code(self) -> int:
        """Stands in the code columns of a text row."""
        return self.backbone.n_ids


def is_csm(folder: Path) -> bool:
    """Whether a folder holds this family."""
    path = folder / "config.json"
    return path.is_file() and read_config(path).optional("model_type") == "csm"


def read_csm_config(folder: Path) -> CsmConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key or the token."""
    config = read_config(folder / "config.json")
    config.expect("tie_codebooks_embeddings", True)
    depth, mimi = config.part("depth_decoder_config"), mimi_config(config.part("codec_config"))
    config.expect("num_codebooks", mimi.n_codebooks)
    depth.expect("num_codebooks", mimi.n_codebooks)
    depth.expect("vocab_size", config.integer("vocab_size"))
    depth.expect("backbone_hidden_size", config.integer("hidden_size"))
    if config.integer("vocab_size") < mimi.n_codes:
        raise WeightError(f"config.json: vocab_size is under the {mimi.n_codes} codes of the codec")
    tokenizer = read_tokenizer(folder)
    return CsmConfig(
        backbone=llama_config(config, max_positions=MAX_POSITIONS),
        depth=llama_config(depth, max_positions=mimi.n_codebooks + 1),
        mimi=mimi,
        n_text_ids=config.integer("text_vocab_size"),
        bos_id=_token(tokenizer, "<|begin_of_text|>"),
        eos_id=_token(tokenizer, "<|end_of_text|>"),
        eos_code=config.integer("codebook_eos_token_id"),
    )


def model_spec(config: CsmConfig, codec: CodecSpec) -> ModelSpec:
    """What the engine and the gateway may know of the model.

    Ids past the codec's are marks of the training data; they are never drawn.
    """
    names = [f"codebook{n}" for n in range(config.n_codebooks)]
    sampling = SamplingParams(
        temperature=float(TEMPERATURE.default or 0.0), top_k=int(TOP_K.default or 0)
    )
    codes = ((0, config.mimi.n_codes),)
    return ModelSpec(
        name="csm",
        tasks=FACTS.tasks,
        columns=(
            ColumnSpec(
                name=TEXT_COLUMN, role="text", ids=(0, config.n_text_ids), pad_id=config.no_text
            ),
            *(
                ColumnSpec(
                    name=name,
                    role="semantic" if idx < config.mimi.n_semantic else "acoustic",
                    ids=(0, config.backbone.n_ids),
                    pad_id=config.no_code,
                )
                for idx, name in enumerate(names)
            ),
        ),
        frame=FrameSpec(
            n_codebooks=config.n_codebooks,
            frame_rate_hz=config.mimi.sample_rate_hz / config.mimi.samples_per_frame,
            sample_rate_hz=config.mimi.sample_rate_hz,
            samples_per_frame=config.mimi.samples_per_frame,
        ),
        backbone=config.backbone.backbone,
        depth=depth_spec(config.depth, names),
        phases=(
            PhaseSpec(
                name="speech",
                columns=(
                    PhaseColumn(fill="forced", forced_id=config.no_text),
                    PhaseColumn(fill="sampled", allowed=codes, sampling=sampling),
                    *(PhaseColumn(fill="depth", allowed=codes, sampling=sampling),)
                    * (config.n_codebooks - 1),
                ),
                feeds_codec=True,
            ),
        ),
        codec=codec,
        state_size=STATE_SIZE,
        voices=FACTS.voices,
        languages=FACTS.languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _token(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.token_to_id(name)
    if found is None:
        raise WeightError(f"tokenizer.json has no token {name!r}: this is no CSM")
    return int(found)
