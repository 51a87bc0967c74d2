"""Facts of `chatterbox-turbo`, and its text.

Source: resemble-ai/chatterbox, `tts_turbo.py` (MIT).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, pre_tokenizers

from models.audio.reference import REFERENCE_AUDIO
from models.chatterbox.config import (
    FRAME_RATE_HZ,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    SAMPLE_RATE_HZ,
    SAMPLES_PER_FRAME,
    SPEECH,
    TEMPERATURE,
)
from models.chatterbox.text import REPLACED, punctuated
from models.chatterbox.turbo_lm import TurboConfig
from models.errors import WeightError
from models.hugging_face import read_byte_tokenizer, read_tokenizer
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

NAME: Final = "chatterbox-turbo"
LMS: Final = ("t3_turbo*.safetensors", "t3_nano*.safetensors")
CODEC: Final = "s3gen_meanflow.safetensors"
SILENCE: Final = 4299
"""The speech token of silence."""
N_SILENT: Final = 3
"""Of them at the end of speech."""
N_ENDING: Final = 1
"""Place in a stream's state of how many of these have been said."""

TOP_P: Final = number_option(
    "top_p", 0.95, 0.01, 1.0, "share of the probability that may be drawn from"
)
TOP_K: Final = integer_option("top_k", 1000, 0, 6561, "tokens that may be drawn; 0 is all")
SOUND_TAGS: Final = ("sigh", "shush", "cough", "groan", "sniff", "gasp", "chuckle", "laugh")
"""Sounds that the published weights were tuned on, as `[laugh]` in the text."""
_SAID_AS_THEY_ARE: Final = ("...", " - ", ";")
_REPLACED: Final = tuple(pair for pair in REPLACED if pair[0] not in _SAID_AS_THEY_ARE)

FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=("en",),
    options=(TEMPERATURE, TOP_P, TOP_K, REPETITION_PENALTY, REFERENCE_AUDIO),
    weights_licence="MIT",
    weights_source="ResembleAI/chatterbox-turbo",
)


def turbo_spec(config: TurboConfig, codec: CodecSpec) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    n_codes, stop = config.n_codes, config.stop
    sampling = SamplingParams(
        temperature=float(TEMPERATURE.default or 0.0),
        top_p=float(TOP_P.default or 1.0),
        top_k=int(TOP_K.default or 0),
        repetition_penalty=float(REPETITION_PENALTY.default or 1.0),
        repetition_window=REPETITION_WINDOW,
    )
    speech = PhaseColumn(
        fill="sampled", allowed=((0, n_codes), (stop, stop + 1)), sampling=sampling
    )
    return ModelSpec(
        name=NAME,
        tasks=FACTS.tasks,
        columns=(ColumnSpec(name=SPEECH, role="semantic", ids=(0, stop + 1), pad_id=stop),),
        frame=FrameSpec(
            n_codebooks=1,
            frame_rate_hz=FRAME_RATE_HZ,
            sample_rate_hz=SAMPLE_RATE_HZ,
            samples_per_frame=SAMPLES_PER_FRAME,
        ),
        backbone=config.backbone,
        phases=(PhaseSpec(name="speech", columns=(speech,), feeds_codec=True),),
        codec=codec,
        state_size=N_ENDING + 1,
        sound_tags=SOUND_TAGS,
        voices=FACTS.voices,
        languages=FACTS.languages,
        options=FACTS.options,
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def read_gpt2_tokenizer(folder: Path, n_ids: int) -> Tokenizer:
    """The tokenizer of a checkpoint, in either layout.

    Args:
        folder: of the checkpoint.
        n_ids: that the LM knows.

    Raises:
        WeightError: the files are missing or damaged, or of another model.
    """
    if (folder / "tokenizer.json").is_file():
        tokenizer = read_tokenizer(folder)
    else:
        tokenizer = read_byte_tokenizer(folder, pre_tokenizers.ByteLevel(add_prefix_space=False))
    if tokenizer.get_vocab_size() > n_ids:
        n_found = tokenizer.get_vocab_size()
        raise WeightError(f"the tokenizer has {n_found} ids, the LM has rows for {n_ids}")
    return tokenizer


def text_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Ids of a text; a sound stands in square brackets there."""
    for tag in SOUND_TAGS:
        text = text.replace(f"<{tag}>", f"[{tag}]")
    ids: list[int] = tokenizer.encode(punctuated(text, _REPLACED), add_special_tokens=False).ids
    return ids
