"""Shape, ids and facts of `opuslm` and `opuslm-dialogue` checkpoints. No weights are read here.

ESPnet states the vocabulary in `config.yaml`. What it only names lies in folders within: the
`config.json` of the backbone, the tokenizer, and the detokenizer.

Source: ESPnet, `espnet2/speechlm` (Apache-2.0), branch `inference` of its author:
`core_lm/ar_delay.py`, `inference_utils.py`, `definitions.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.checkpoint import Config, TaggedYamlError, read_config, read_yaml
from models.codecs.espnet_dac import EspnetDacConfig, read_espnet_dac_config
from models.errors import WeightError
from models.hub import Needs, Part
from models.hugging_face import LlamaConfig, llama_config
from models.layers.transformer import LLAMA, BlockStyle

CONFIG: Final = "config.yaml"
PACKED: Final = "meta.yaml"
BACKBONE_FOLDER: Final = "backbone"
TOKENIZER_FOLDER: Final = "tokenizer"
DAC_FOLDER: Final = "espnet_codec_dac_large"
DAC_SOURCE: Final = "ftshijt/espnet_codec_dac_large_v1.4_360epoch"
DAC_PLACE: Final = "exp/codec_train_dac_large_v1.4_raw_fs16000"
DAC_FILE: Final = "360epoch.pth"
"""Where it stands in its repository, and its weights. Source: its `meta.yaml`."""
STYLES: Final = {"llama": LLAMA, "olmo2": BlockStyle(qk_norm="row", norms="after")}
"""Of the backbone's blocks, by `model_type` of its `config.json`."""
DEFAULT_POSITIONS: Final = 8192
"""Rows of a sequence where `transformer_conf` states no `n_ctx`. Source: ESPnet's default."""
BY_PREFERENCE: Final = "dpo"
"""`model` of the dialogue checkpoint, which was trained by preferences; others are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpusLmIds:
    """Ids with a meaning, by their names in the checkpoint's `token_list`.

    Args:
        pad: blank of every column.
        end: opens a sequence and closes a segment.
        system: opens what holds for all of a conversation.
        user: opens what the user says.
        assistant: opens an answer.
        speech: opens frames.
        text: opens text.
        voice: opens a voice.
        voiced_speech: the task of speaking a text in a voice.
        plain_speech: the task of speaking a text.
        text_dialogue: the task of answering.
    """

    pad: int
    end: int
    system: int
    user: int
    assistant: int
    speech: int
    text: int
    voice: int
    voiced_speech: int
    plain_speech: int
    text_dialogue: int


NAMES: Final = {
    "pad": "<pad>",
    "end": "<sos/eos>",
    "system": "<system_prompt>",
    "user": "<user_input>",
    "assistant": "<assistant_output>",
    "speech": "<codec_ssl_start/end>",
    "text": "<text_bpe_start/end>",
    "voice": "<spk_start/end>",
    "voiced_speech": "<codec_ssl_tts_task>",
    "plain_speech": "<codec_ssl_plain_tts_task>",
    "text_dialogue": "<text_dialogue_task>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpusLmConfig:
    """A checkpoint.

    Args:
        decoder: of the backbone; its `n_ids` are those of the whole vocabulary.
        is_tied: the head is the table.
        is_dialogue: it answers, and does not only speak.
        ids: with a meaning.
        units: half-open range of the ids of the first column: clusters of what is said.
        text: range of the text's ids, in the order of the tokenizer.
        codes: range of the codec's ids, codebook after codebook.
        n_voice_rows: rows of a voice in a prompt.
        dac: the detokenizer.
    """

    decoder: LlamaConfig
    is_tied: bool
    is_dialogue: bool
    ids: OpusLmIds
    units: tuple[int, int]
    text: tuple[int, int]
    codes: tuple[int, int]
    n_voice_rows: int
    dac: EspnetDacConfig

    @property
    def n_columns(self) -> int:
        """One of units or text, and one for each codebook."""
        return 1 + self.dac.n_codebooks

    @property
    def code_ranges(self) -> tuple[tuple[int, int], ...]:
        """The ids of each codebook."""
        low, high = self.codes
        size = (high - low) // self.dac.n_codebooks
        return tuple((at, at + size) for at in range(low, high, size))


def is_opuslm(folder: Path, *, is_dialogue: bool) -> bool:
    """Whether a folder holds this family."""
    path = folder / CONFIG
    if not path.is_file():
        return False
    try:
        config = read_yaml(path)
    # Of another family.
    except TaggedYamlError:
        return False
    if not {"token_list", "token_bias", "codec_token_per_frame"} <= config.values.keys():
        return False
    return _answers(config) == is_dialogue


def read_opuslm_config(folder: Path) -> OpusLmConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key or the file."""
    config = read_yaml(folder / CONFIG)
    tokens = _tokens(config)
    units, codes, text = (_span(config, name, len(tokens)) for name in ("ssl", "codec", "text_bpe"))
    dac = read_espnet_dac_config(dac_folder(folder))
    n_columns = config.integer("codec_token_per_frame")
    if n_columns != 1 + dac.n_codebooks or codes[1] - codes[0] != dac.n_codebooks * dac.n_codes:
        raise WeightError(
            f"{config.source}: codec_token_per_frame {n_columns} and token_bias.codec {codes} do "
            f"not fit {DAC_FOLDER}, which has {dac.n_codebooks} codebooks of {dac.n_codes}"
        )
    config.expect("codec_token_in_use", n_columns)
    return OpusLmConfig(
        decoder=_backbone(folder, config, n_ids=len(tokens), n_text=text[1] - text[0]),
        is_tied=config.part("corelm_conf").optional("share_emb") is True,
        is_dialogue=_answers(config),
        ids=_ids(tokens, min(units[0], codes[0], text[0]), config.source),
        units=units,
        text=text,
        codes=codes,
        n_voice_rows=config.integer("speaker_prompt_length"),
        dac=dac,
    )


def lm_weights(folder: Path) -> Path:
    """The LM's weights: `model.pth`, or a name of an epoch. Raises: `WeightError`."""
    found = sorted(folder.glob("*.pth"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise WeightError(f"{folder} must hold one file of weights, *.pth, and has {names}")
    return found[0]


def dac_folder(folder: Path) -> Path:
    """Where the detokenizer's files lie: as ESPnet packs them, or right in their folder.

    Raises:
        WeightError: they do not; it says what to fetch.
    """
    place, stated = folder / DAC_FOLDER, CONFIG
    if (place / PACKED).is_file():
        stated = read_yaml(place / PACKED).part("yaml_files").text("train_config")
    if ".." in Path(stated).parts or Path(stated).is_absolute():
        raise WeightError(f"{place / PACKED} names a file outside of its folder: {stated!r}")
    if not (place / stated).is_file():
        raise WeightError(f"{folder} has no detokenizer: put {DAC_SOURCE} into {place}")
    return (place / stated).parent


def backbone_source(config: Config) -> str:
    """The repository of the backbone, of which the shape is read. Raises: `WeightError`."""
    return config.part("transformer_conf").text("hf_model_tag")


def tokenizer_source(config: Config) -> str:
    """The repository of the tokenizer: not always the backbone's. Raises: `WeightError`."""
    return config.text("subword_model")


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub. Raises: `WeightError`."""
    config = read_yaml(folder / CONFIG)
    dac = Part(folder=DAC_FOLDER, repository=DAC_SOURCE, within=DAC_PLACE, weights=(DAC_FILE,))
    return Needs(
        weights=(lm_weights(folder).name,),
        parts=(
            Part(folder=BACKBONE_FOLDER, repository=backbone_source(config), weights=()),
            Part(folder=TOKENIZER_FOLDER, repository=tokenizer_source(config), weights=()),
            dac,
        ),
    )


def _answers(config: Config) -> bool:
    return bool(config.optional("model") == BY_PREFERENCE)


def _tokens(config: Config) -> Sequence[str]:
    tokens = config.optional("token_list")
    if not isinstance(tokens, list) or not all(isinstance(one, str) for one in tokens):
        raise WeightError(f"{config.source} does not state token_list as a list of names")
    return tokens


def _ids(tokens: Sequence[str], n_marks: int, source: str) -> OpusLmIds:
    marks = tokens[:n_marks]
    found = {field: marks.index(name) for field, name in NAMES.items() if name in marks}
    missing = [name for field, name in NAMES.items() if field not in found]
    if missing:
        raise WeightError(f"{source}: token_list has no {', '.join(missing)} before id {n_marks}")
    return OpusLmIds(**found)


def _span(config: Config, name: str, n_ids: int) -> tuple[int, int]:
    bias = config.part("token_bias")
    span = bias.integers(name)
    if len(span) != 2 or not 0 < span[0] < span[1] <= n_ids:
        raise WeightError(
            f"{config.source} has token_bias.{name} = {list(span)}, must be the first id and the "
            f"one after the last, of {n_ids}"
        )
    return span[0], span[1]


def _backbone(folder: Path, config: Config, *, n_ids: int, n_text: int) -> LlamaConfig:
    tag = backbone_source(config)
    path = folder / BACKBONE_FOLDER / "config.json"
    if not path.is_file():
        raise WeightError(f"{path} is missing: put that of {tag} there")
    stated = read_config(path)
    kind = stated.text("model_type")
    if kind not in STYLES:
        raise WeightError(f"config.json: model_type {kind!r} is none of {', '.join(STYLES)}")
    if stated.integer("vocab_size") != n_text:
        raise WeightError(
            f"config.json: vocab_size {stated.integer('vocab_size')} is not the {n_text} ids of "
            f"token_bias.text_bpe in {config.source}: put that of {tag} there"
        )
    n_positions = DEFAULT_POSITIONS
    transformer = config.part("transformer_conf")
    if transformer.optional("n_ctx") is not None:
        n_positions = transformer.integer("n_ctx")
    values = {
        # The rule of the library for files that do not state it.
        "head_dim": stated.integer("hidden_size") // stated.integer("num_attention_heads"),
        **stated.values,
        "vocab_size": n_ids,
        # Trained on longer sequences than the backbone was before.
        "max_position_embeddings": n_positions,
    }
    return llama_config(
        Config(values, stated.source), max_positions=n_positions, style=STYLES[kind]
    )
