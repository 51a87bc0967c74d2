"""The files of a checkpoint folder: which there are, and all that is read of them.

The reference loads `s3gen.safetensors` loosely; here it is whole or refused. What is there beside
the weights, and follows from the rate, is known: see `SpeechTokenizer`, and `_FOLLOWING`.

Source: resemble-ai/chatterbox, `tts.py` and `mtl_tts.py` (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from models.audio.speaker_embedding import CamPlus
from models.audio.speech_tokenizer import SpeechTokenizer
from models.chatterbox.codec import SpeechCodec, make_codec, make_codec_spec
from models.chatterbox.config import (
    CANGJIE,
    CODEC,
    DEFAULT_VOICE,
    ENGLISH_LM,
    ENGLISH_TOKENIZER,
    FACTS,
    LM_HEARS_S,
    MULTILINGUAL,
    MULTILINGUAL_LMS,
    MULTILINGUAL_TOKENIZER,
    VOICE_ENCODER,
    LmConfig,
    lm_config,
    model_spec,
)
from models.chatterbox.lm import SpeechLm
from models.chatterbox.model import ChatterboxModel
from models.chatterbox.shapes import FLOW, VOCODER, n_speech_tokens
from models.chatterbox.text import CHINESE, TextReader, read_cangjie
from models.chatterbox.voice import Listener, Voice, read_default_voice
from models.chatterbox.voice_encoder import VoiceEncoder
from models.checkpoint import REMEDY, read_torch_file
from models.errors import WeightError
from models.hub import Needs
from models.hugging_face import read_tokenizer
from models.spec import ModelSpec
from models.weights import read_tensors

TOKENIZER, EMBEDDER = "tokenizer.", "speaker_encoder."
_FOLLOWING: Final = ("trim_fade",)
"""A table that older files hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Which files a family reads of a folder.

    Args:
        folder: of the checkpoint.
        lm: name of the LM's file.
        tokenizer: name of the tokenizer's.
        languages: that its text may be in, the usual one first; where there is a choice, the LM is
            told.
    """

    folder: Path
    lm: str
    tokenizer: str
    languages: tuple[str, ...]


def english_files(folder: Path) -> Files:
    """Those of the English model."""
    return Files(
        folder=folder, lm=ENGLISH_LM, tokenizer=ENGLISH_TOKENIZER, languages=FACTS.languages
    )


def multilingual_files(folder: Path) -> Files:
    """Those of the multilingual one; of several LMs the newest. Raises: `WeightError`: none."""
    lms = sorted(path.name for path in folder.glob(MULTILINGUAL_LMS))
    if not lms:
        raise WeightError(f"{folder} has no {MULTILINGUAL_LMS}; {REMEDY}")
    has_cangjie = (folder / CANGJIE).is_file()
    return Files(
        folder=folder,
        lm=lms[-1],
        tokenizer=MULTILINGUAL_TOKENIZER,
        languages=tuple(one for one in MULTILINGUAL if one != CHINESE or has_cangjie),
    )


def needs(files: Files) -> Needs:
    """What is fetched of the hub beside the texts."""
    return Needs(weights=(files.lm, CODEC, VOICE_ENCODER, DEFAULT_VOICE))


def read_spec(name: str, files: Files) -> ModelSpec:
    """The facts of a checkpoint, by the shapes of its tensors. Raises: `WeightError`."""
    tensors = read_part(files.folder, CODEC)
    config = _lm_config(read_tensors(files.folder / files.lm), files, tensors)
    return model_spec(name, config, make_codec_spec(tensors, source=CODEC), files.languages)


def load(name: str, files: Files) -> ChatterboxModel:
    """The model of a checkpoint, on the CPU in float32. Raises: `WeightError`."""
    folder = files.folder
    tensors = read_part(folder, CODEC)
    parts = split_codec(tensors, CODEC)
    weights = read_tensors(folder / files.lm)
    lm = SpeechLm(_lm_config(weights, files, tensors), weights, source=files.lm)
    return ChatterboxModel(
        name,
        lm=lm,
        codec=codec_of(tensors, parts, CODEC),
        reader=_reader(files),
        languages=files.languages,
        listener=listener_of(folder, parts, CODEC, LM_HEARS_S, lm.config.speaker_size),
        voice=default_voice(folder, lm.config.speaker_size, lm.config.n_codes),
    )


def read_codec(folder: Path, name: str = CODEC) -> SpeechCodec:
    """The detokenizer alone. Raises: `WeightError`."""
    tensors = read_part(folder, name)
    return codec_of(tensors, split_codec(tensors, name), name)


def codec_of(
    tensors: Mapping[str, Tensor], parts: Mapping[str, Mapping[str, Tensor]], source: str
) -> SpeechCodec:
    """The detokenizer of the codec's file, whole and in its parts. Raises: `WeightError`."""
    return make_codec(parts[FLOW], parts[VOCODER], tensors, source=source)


def listener_of(
    folder: Path,
    parts: Mapping[str, Mapping[str, Tensor]],
    source: str,
    lm_hears_s: int,
    speaker_size: int,
) -> Listener:
    """What hears the voices of recordings.

    Args:
        folder: of the checkpoint.
        parts: of the codec's file.
        source: that file, for messages.
        lm_hears_s: seconds of a recording that the LM looks at.
        speaker_size: numbers that the LM is told a voice by.

    Raises:
        WeightError: a file is missing, or not of this kind.
    """
    encoder = VoiceEncoder(read_part(folder, VOICE_ENCODER), source=VOICE_ENCODER)
    _check_size(encoder.size, VOICE_ENCODER, speaker_size)
    return Listener(
        encoder,
        SpeechTokenizer(parts[TOKENIZER], source=f"{source}, {TOKENIZER[:-1]}"),
        CamPlus(parts[EMBEDDER], source=f"{source}, {EMBEDDER[:-1]}"),
        lm_hears_s,
    )


def default_voice(folder: Path, speaker_size: int, n_codes: int) -> Voice | None:
    """The voice of a checkpoint, if it has one. Raises: `WeightError`: it does not fit."""
    path = folder / DEFAULT_VOICE
    if not path.is_file():
        return None
    voice = read_default_voice(path)
    _check_size(len(voice.speaker), DEFAULT_VOICE, speaker_size)
    if int(torch.cat([voice.tokens, voice.prompt_tokens]).max()) >= n_codes:
        raise WeightError(f"{DEFAULT_VOICE} has speech tokens beyond {n_codes - 1}")
    return voice


def _check_size(found: int, source: str, wanted: int) -> None:
    if found != wanted:
        raise WeightError(f"{source} tells a voice by {found} numbers, the LM takes {wanted}")


def _lm_config(
    weights: Mapping[str, Tensor], files: Files, codec: Mapping[str, Tensor]
) -> LmConfig:
    return lm_config(weights, n_codes=n_speech_tokens(codec, CODEC), source=files.lm)


def _reader(files: Files) -> TextReader:
    told = files.languages if len(files.languages) > 1 else ()
    cangjie = read_cangjie(files.folder / CANGJIE) if CHINESE in told else None
    tokenizer = read_tokenizer(files.folder, files.tokenizer)
    return TextReader(tokenizer, told, cangjie, source=files.tokenizer)


def read_part(folder: Path, name: str) -> Mapping[str, Tensor]:
    """Tensors of a file of this name, or of one that torch wrote. Raises: `WeightError`."""
    by_torch = (folder / name).with_suffix(".pt")
    if not (folder / name).is_file() and by_torch.is_file():
        return read_torch_file(by_torch)
    return read_tensors(folder / name)


def split_codec(tensors: Mapping[str, Tensor], source: str = CODEC) -> dict[str, dict[str, Tensor]]:
    """The parts of the codec's file, by their prefixes. Raises: `WeightError`: keys of none."""
    parts: dict[str, dict[str, Tensor]] = {
        prefix: {} for prefix in (TOKENIZER, EMBEDDER, FLOW, VOCODER)
    }
    stray = []
    for key, tensor in tensors.items():
        prefix = f"{key.partition('.')[0]}."
        if prefix in parts:
            parts[prefix][key.removeprefix(prefix)] = tensor
        elif key not in _FOLLOWING:
            stray.append(key)
    if stray:
        raise WeightError(f"{source} has keys of no known part: {', '.join(sorted(stray)[:8])}")
    return parts
