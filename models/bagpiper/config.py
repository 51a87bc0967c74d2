"""Shape, ids and decoding of a `bagpiper` checkpoint, as ESPnet publishes it. No weights here.

A folder holds one training config (`train*.yaml`), how to decode (`inference*.yaml`) and one file
of weights (`*.pt`). The configs of the backbone and of the codec are in other repositories, which
the training config names.

Source: ESPnet 202611, `espnet2/speechlm` (Apache-2.0): `speechlm_job.py` (vocabulary, prompts),
`lm/parallel.py` (decoding), `multimodal_io/audio.py` (delays), and `bin/speechlm_inference.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from models.checkpoint import Config, TaggedYamlError, read_config, read_yaml
from models.codecs.dac import DacConfig
from models.codecs.xcodec import read_xcodec_config
from models.errors import WeightError
from models.hub import Needs, Part
from models.hugging_face import LlamaConfig, llama_config
from models.layers.transformer import BlockStyle

BLANK, BOS, EOS, EOT, SYSTEM, USER, ASSISTANT, TEXT_MARK, AUDIO_MARK = range(9)
"""Ids with a meaning; no file of a checkpoint states them. `EOT` ends a message that another one of
the same role follows, `EOS` any other."""
N_MARKS: Final = 256
"""Ids that are kept for such."""
MARKS: Final = {"text": TEXT_MARK, "audio": AUDIO_MARK}
"""Of what a message holds."""

STYLE: Final = BlockStyle(qk_norm="head")
MAX_POSITIONS: Final = 6144
"""Rows of a stream: the longest text and the longest speech, and 2000 for the prompt. The backbone
was trained for 32768, and a page pool for such streams would not fit anywhere."""
MOST_SEGMENTS: Final = 4
"""Most messages of an answer whose kinds are given."""
Ranges = dict[str, tuple[tuple[int, int], ...]]
"""Half-open ranges of ids, by the names that the training config gives them."""
TEXT_IO, CODES_IO, FEATURES_IO = "text", "discrete_audio", "continuous_audio"

SYSTEM_TEXT: Final = (
    "You are a helpful assistant that generates audio based on user requests. You can create "
    "various types of audio including sound effects, music, speech, ambient sounds, and any "
    "combination of these. When given a request, first think through what the user wants and how "
    "to create high-quality audio, then provide a detailed description of the audio you will "
    "generate."
)
"""Stands in all data that the general checkpoint was tuned on, and in none of the others'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How a message of one kind is drawn.

    Args:
        temperature: 0 takes the likeliest.
        top_k: ids that may be drawn.
        guidance: 1 is none.
        least_rows: rows before which it cannot end.
        most_rows: rows after which it is ended.
    """

    temperature: float
    top_k: int
    guidance: float
    least_rows: int
    most_rows: int


TEXT_DECODING: Final = Decoding(
    temperature=0.6, top_k=20, guidance=1.0, least_rows=1, most_rows=2048
)
AUDIO_DECODING: Final = Decoding(
    temperature=0.8, top_k=20, guidance=3.0, least_rows=50, most_rows=2048
)
"""What the published files state; for the base checkpoint, which has none."""
SPOKEN_ORDER: Final = ("text", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class BagpiperConfig:
    """A checkpoint.

    Args:
        decoder: the backbone; its `n_ids` are the whole vocabulary.
        tokenizer: folder of the text tokenizer.
        text_ids: range of text.
        code_ids: range of each column's codes; the first id of each is its blank.
        codec: the detokenizer.
        text: how text is drawn.
        audio: how speech is drawn.
        order: kinds of the messages of an answer; empty: the model chooses.
        system: what the system says before each request; may be empty.
        has_encoder: the weights hold an encoder of heard audio.
    """

    decoder: LlamaConfig
    tokenizer: Path
    text_ids: tuple[int, int]
    code_ids: tuple[tuple[int, int], ...]
    codec: DacConfig
    text: Decoding
    audio: Decoding
    order: tuple[str, ...]
    system: str
    has_encoder: bool

    @property
    def n_columns(self) -> int:
        """Ids of a row; each is a code in speech."""
        return len(self.code_ids)


def is_bagpiper(folder: Path) -> bool:
    """Whether a folder holds this family: weights, and the training config of a SpeechLM."""
    if not any(folder.glob("*.pt")):
        return False
    try:
        stated = [read_yaml(path) for path in _training_configs(folder)]
    # Of another family: its detokenizers have such files, and weights beside them.
    except TaggedYamlError:
        return False
    return any(one.optional("job_type") == "speechlm" for one in stated)


def read_bagpiper_config(folder: Path) -> BagpiperConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the file or the key."""
    config = _training_config(folder)
    config.expect("job_type", "speechlm")
    parts, model = config.part("multimodal_io"), config.part("model")
    model.expect("model_choice", "parallel")
    codec = _read_codec(folder, parts.part(CODES_IO))
    tokenizer = _beside(
        folder, parts.part(TEXT_IO).text("tokenizer_name"), "config.json", "tokenizer.json"
    )
    n_text = _backbone_config(tokenizer).integer("vocab_size")
    backbone = _backbone_config(_beside(folder, model.text("model_hf_tag"), "config.json"))
    backbone.expect("architectures", ["Qwen3ForCausalLM"])
    backbone.expect("vocab_size", n_text)
    ids = _id_ranges(config, n_text, codec)
    text, audio, order = _read_decoding(folder)
    decoder = llama_config(backbone, max_positions=MAX_POSITIONS, style=STYLE)
    return BagpiperConfig(
        decoder=replace(decoder, n_ids=max(high for spans in ids.values() for _, high in spans)),
        tokenizer=tokenizer,
        text_ids=ids[TEXT_IO][0],
        code_ids=ids[CODES_IO],
        codec=codec,
        text=text,
        audio=audio,
        order=order,
        system=SYSTEM_TEXT if (folder / "inference_audio.yaml").is_file() else "",
        has_encoder=FEATURES_IO in parts.values,
    )


def weights_file(folder: Path) -> Path:
    """The file of weights: `model.pt`, `base.pt` or as it was trained. Raises: `WeightError`."""
    files = sorted(folder.glob("*.pt"))
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise WeightError(f"{folder} must hold one file of weights (*.pt), found: {found}")
    return files[0]


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub. Raises: `WeightError`."""
    config = _training_config(folder)
    parts = config.part("multimodal_io")
    beside = (
        parts.part(TEXT_IO).text("tokenizer_name"),
        config.part("model").text("model_hf_tag"),
        parts.part(CODES_IO).text("codec_hf_model_tag"),
    )
    return Needs(
        weights=(weights_file(folder).name,),
        parts=tuple(
            Part(folder=Path(name).name, repository=name, weights=())
            for name in dict.fromkeys(beside)
        ),
    )


def _training_configs(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.yaml"))
    return [path for path in paths if not path.name.startswith("inference")]


def _training_config(folder: Path) -> Config:
    paths = _training_configs(folder)
    if len(paths) != 1:
        found = ", ".join(path.name for path in paths) or "none"
        raise WeightError(f"{folder} must hold one training config (train*.yaml), found: {found}")
    return read_yaml(paths[0])


def _beside(folder: Path, repository: str, *files: str) -> Path:
    """The folder within that is called like a repository. Raises: `WeightError`."""
    path = folder / Path(repository).name
    for file in files:
        if not (path / file).is_file():
            raise WeightError(f"{path / file} is missing: put it there from {repository}")
    return path


def _backbone_config(folder: Path) -> Config:
    return read_config(folder / "config.json")


def _read_codec(folder: Path, part: Config) -> DacConfig:
    part.expect("codec_choice", "Xcodec")
    part.expect("ssl_choice", None)
    if not part.flag("delay_interleave"):
        raise WeightError(f"{part.source}: {part.prefix}delay_interleave is not set; it must be")
    config = read_xcodec_config(_beside(folder, part.text("codec_hf_model_tag"), "config.json"))
    # The reference takes the first eight codebooks where nothing is stated.
    n_most = part.optional("codec_max_token_per_frame") or 8
    if n_most < config.n_codebooks:
        raise WeightError(
            f"{part.source}: {part.prefix}codec_max_token_per_frame {n_most} leaves out codebooks "
            f"of the codec, which has {config.n_codebooks}"
        )
    return config


def _id_ranges(config: Config, n_text: int, codec: DacConfig) -> Ranges:
    """Ranges of ids of text and codes: they follow in the order in which the config names them."""
    widths = {
        TEXT_IO: [n_text],
        CODES_IO: [codec.n_codes + 1] * codec.n_codebooks,
        FEATURES_IO: [],
    }
    parts = config.part("multimodal_io")
    ranges: Ranges = {"special_token": ((0, N_MARKS),)}
    low = N_MARKS
    for name in parts.values:
        if name not in widths:
            raise WeightError(f"{config.source}: multimodal_io.{name} is not known here")
        spans = []
        for width in widths[name]:
            spans.append((low, low + width))
            low += width
        if spans:
            ranges[name] = tuple(spans)
    _check_recorded(config, ranges)
    return ranges


def _check_recorded(config: Config, ranges: Ranges) -> None:
    """Refuse a config whose keys changed places since the training, where it records theirs."""
    if config.optional("vocab_intervals") is None:
        return
    recorded = config.part("vocab_intervals")
    for name, spans in ranges.items():
        recorded.expect(name, [list(span) for span in spans])


def _read_decoding(folder: Path) -> tuple[Decoding, Decoding, tuple[str, ...]]:
    """How text and speech are drawn, and in which order they come."""
    for name in ("inference_audio.yaml", "inference.yaml"):
        if (folder / name).is_file():
            config = read_yaml(folder / name)
            text, audio = _decoding(config.part("text")), _decoding(config.part("audio"))
            if text.guidance != 1:
                raise WeightError(f"{name}: text.cfg must be 1: only speech is guided here")
            return text, audio, _order(config)
    return TEXT_DECODING, AUDIO_DECODING, SPOKEN_ORDER


def _decoding(part: Config) -> Decoding:
    part.expect("num_hypo", 1)
    return Decoding(
        temperature=part.number("temperature"),
        top_k=part.integer("topk"),
        # These two have defaults in the reference.
        guidance=1.0 if part.optional("cfg") is None else max(1.0, part.number("cfg")),
        least_rows=1 if part.optional("min_step") is None else part.integer("min_step"),
        most_rows=part.integer("max_step"),
    )


def _order(config: Config) -> tuple[str, ...]:
    order = config.optional("enforce_modality") or []
    known = isinstance(order, list) and all(kind in MARKS for kind in order)
    if not known or len(order) > MOST_SEGMENTS:
        raise WeightError(
            f"{config.source} has enforce_modality = {order!r}, must be a list of at most "
            f"{MOST_SEGMENTS} of {', '.join(MARKS)}"
        )
    return tuple(order)
