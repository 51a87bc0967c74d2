"""Shape, ids and facts of a `zonos` checkpoint (the transformer). No weights are read here.

Source: Zyphra/Zonos, `config.py`, `conditioning.py` and `model.py` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models.audio.reference import REFERENCE_AUDIO
from models.checkpoint import Config, read_config
from models.codecs.dac import CHUNK_FRAMES, DacConfig, read_dac_config
from models.codecs.windowed import windowed_codec
from models.errors import WeightError
from models.hugging_face import LlamaConfig
from models.layers.transformer import BlockStyle
from models.options import number_option
from models.spec import (
    BackboneSpec,
    ColumnSpec,
    FamilyFacts,
    FrameSpec,
    GuidanceSpec,
    ModelSpec,
    PhaseColumn,
    PhaseSpec,
    SamplingParams,
)

STYLE: Final = BlockStyle(norm="layer", is_interleaved=True)
DAC_FOLDER: Final = "dac_44khz"
MAX_POSITIONS: Final = 4096
"""Rows of a stream: 47 s. The reference allows 30 s of speech."""
MAX_SECONDS: Final = 30.0
THETA: Final = 10_000.0
"""Of the rotary embedding. Source: the reference's default; no checkpoint states it."""
PHONEMES: Final = "espeak"
LANGUAGE: Final = "language_id"
EMOTION: Final = "emotion"
SPEAKER: Final = "speaker"

ROW, LAST = 1, 2
"""Places in a stream's state: rows generated, and the number of frames once the end has come."""
PAST: Final = 3
"""Place of the rows that still belong to an unfinished frame."""

_CODES = """
af am an ar as az ba bg bn bpy bs ca cmn cs cy da de el en-029 en-gb en-gb-scotland
en-gb-x-gbclan en-gb-x-gbcwmd en-gb-x-rp en-us eo es es-419 et eu fa fa-latn fi fr-be
fr-ch fr-fr ga gd gn grc gu hak hi hr ht hu hy hyw ia id is it ja jbo ka kk kl kn ko kok
ku ky la lfn lt lv mi mk ml mr ms mt my nb nci ne nl om or pa pap pl pt pt-br py quc ro ru
ru-lv sd shn si sk sl sq sr sv sw ta te tn tr tt ur uz vi vi-vn-x-central vi-vn-x-south
yue
"""
LANGUAGES: Final = tuple(_CODES.split())
"""In the order of their ids; the codes are those of eSpeak."""
DEFAULT_LANGUAGE: Final = "en-us"
EMOTIONS: Final = {
    "happiness": 0.3077,
    "sadness": 0.0256,
    "disgust": 0.0256,
    "fear": 0.0256,
    "surprise": 0.0256,
    "anger": 0.0256,
    "other": 0.2564,
    "neutral": 0.3077,
}
"""Shares by default, in the order of the vector."""


GUIDANCE: Final = number_option(
    "guidance", 2.0, 1.0, 10.0, "how closely to follow text and settings; 1 turns guidance off"
)
MIN_P: Final = number_option(
    "min_p", 0.1, 0.0, 1.0, "codes less likely than this part of the likeliest are not drawn"
)
TEMPERATURE: Final = number_option(
    "temperature", 1.0, 0.0, 2.0, "of the codes; 0 takes the likeliest"
)
SETTINGS: Final = {
    "fmax": number_option("fmax", 22_050.0, 0.0, 24_000.0, "highest frequency of the speech in Hz"),
    "pitch_std": number_option(
        "pitch_std", 20.0, 0.0, 400.0, "how much the pitch moves; 20 to 45 is calm"
    ),
    "speaking_rate": number_option(
        "speaking_rate", 15.0, 0.0, 40.0, "phonemes a second; 10 is slow, 30 very fast"
    ),
}
"""Options that are conditioners of the same name."""
FACTS: Final = FamilyFacts(
    tasks=("speak",),
    voices=(),
    languages=(DEFAULT_LANGUAGE, *(code for code in LANGUAGES if code != DEFAULT_LANGUAGE)),
    options=(
        GUIDANCE,
        TEMPERATURE,
        MIN_P,
        *SETTINGS.values(),
        *(
            number_option(
                name, share, 0.0, 1.0, "share of this emotion; the shares are brought to 1"
            )
            for name, share in EMOTIONS.items()
        ),
        REFERENCE_AUDIO,
    ),
    weights_licence="Apache-2.0 (LM, speaker encoder), MIT (DAC)",
    weights_source="Zyphra/Zonos-v0.1-transformer, Zyphra/Zonos-v0.1-speaker-embedding and "
    "descript/dac_44khz",
)
SAMPLING: Final = SamplingParams(
    temperature=1.0, min_p=0.1, repetition_penalty=3.0, repetition_window=2
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioner:
    """One kind of row before the speech.

    Args:
        kind: `EspeakPhonemeConditioner`, `FourierConditioner`, `IntegerConditioner` or
            `PassthroughConditioner`.
        name: what it is told.
        width: of what it is told, for the last one.
        projection: `none`, `linear` or `mlp`.
        may_be_absent: it has a row for "nothing said".
        least: lowest value.
        most: highest value.
        n_inputs: numbers that it takes.
    """

    kind: str
    name: str
    width: int
    projection: str
    may_be_absent: bool
    least: float
    most: float
    n_inputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonosConfig:
    """A checkpoint.

    Args:
        decoder: of the LM; its `n_ids` are the codes and the end.
        conditioners: in the order of their rows.
        projection: of all their rows.
        dac: the detokenizer.
        eos: ends the first codebook, and so the speech.
        blank: stands where a codebook has no frame yet, or no more.
    """

    decoder: LlamaConfig
    conditioners: tuple[Conditioner, ...]
    projection: str
    dac: DacConfig
    eos: int
    blank: int

    @property
    def n_codebooks(self) -> int:
        """Codes in a frame."""
        return self.dac.n_codebooks

    @property
    def speaker_size(self) -> int:
        """Numbers that a voice is told by; 0: the checkpoint takes none."""
        return next((one.width for one in self.conditioners if one.name == SPEAKER), 0)


def is_zonos(folder: Path) -> bool:
    """Whether a folder holds this family."""
    path = folder / "config.json"
    return path.is_file() and {"backbone", "prefix_conditioner"} <= read_config(path).values.keys()


def read_zonos_config(folder: Path) -> ZonosConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key."""
    config = read_config(folder / "config.json")
    backbone, prefix = config.part("backbone"), config.part("prefix_conditioner")
    if backbone.optional("ssm_cfg"):
        raise WeightError(f"{folder} is a hybrid Zonos; only the transformer is known here")
    dac_folder = folder / DAC_FOLDER
    if not dac_folder.is_dir():
        raise WeightError(f"{folder} has no detokenizer: put descript/dac_44khz into {dac_folder}")
    dac = read_dac_config(dac_folder)
    eos = config.integer("eos_token_id")
    if eos != dac.n_codes:
        raise WeightError(f"config.json: eos_token_id {eos} does not follow {dac.n_codes} codes")
    return ZonosConfig(
        decoder=_decoder(backbone, n_ids=eos + 1),
        conditioners=tuple(_conditioner(part) for part in _parts(prefix, "conditioners")),
        projection=prefix.text("projection"),
        dac=dac,
        eos=eos,
        blank=config.integer("masked_token_id"),
    )


def model_spec(config: ZonosConfig) -> ModelSpec:
    """What the engine and the gateway may know of the model."""
    names = tuple(f"codebook{n}" for n in range(config.n_codebooks))
    dac = config.dac
    return ModelSpec(
        name="zonos",
        tasks=FACTS.tasks,
        columns=tuple(
            ColumnSpec(
                name=name,
                role="acoustic" if idx else "semantic",
                ids=(0, config.eos + 1),
                pad_id=config.blank,
                delay_rows=idx,
            )
            for idx, name in enumerate(names)
        ),
        frame=FrameSpec(
            n_codebooks=dac.n_codebooks,
            frame_rate_hz=dac.sample_rate_hz / dac.samples_per_frame,
            sample_rate_hz=dac.sample_rate_hz,
            samples_per_frame=dac.samples_per_frame,
        ),
        backbone=config.decoder.backbone,
        phases=(
            PhaseSpec(
                name="speech",
                columns=(
                    PhaseColumn(fill="sampled", sampling=SAMPLING),
                    *(PhaseColumn(fill="sampled", allowed=((0, dac.n_codes),), sampling=SAMPLING),)
                    * (dac.n_codebooks - 1),
                ),
                feeds_codec=True,
            ),
        ),
        guidance=GuidanceSpec(
            scale=float(GUIDANCE.default or 1.0),
            phases=("speech",),
            columns=names,
            companion="own_rows",
            entry="start",
        ),
        codec=windowed_codec(dac.reach, CHUNK_FRAMES),
        state_size=PAST + (dac.n_codebooks - 1) * dac.n_codebooks,
        voices=FACTS.voices,
        languages=FACTS.languages,
        options=tuple(
            one for one in FACTS.options if config.speaker_size or one is not REFERENCE_AUDIO
        ),
        weights_licence=FACTS.weights_licence,
        weights_source=FACTS.weights_source,
    )


def _decoder(backbone: Config, *, n_ids: int) -> LlamaConfig:
    attention = backbone.part("attn_cfg")
    hidden, n_heads = backbone.integer("d_model"), attention.integer("num_heads")
    # The reference's rule; a file may state it as well.
    attention.expect("head_dim", hidden // n_heads)
    return LlamaConfig(
        backbone=BackboneSpec(
            n_layers=backbone.integer("n_layer"),
            n_query_heads=n_heads,
            n_kv_heads=attention.integer("num_heads_kv"),
            head_dim=hidden // n_heads,
            hidden=hidden,
            max_positions=MAX_POSITIONS,
        ),
        inner=backbone.integer("attn_mlp_d_intermediate"),
        n_ids=n_ids,
        eps=backbone.number("norm_epsilon"),
        theta=THETA,
        scaling=None,
        style=STYLE,
    )


def _parts(config: Config, key: str) -> list[Config]:
    found: Any = config.optional(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise WeightError(f"{config.source} does not state {config.prefix}{key} as a list")
    parts: list[Mapping[str, Any]] = found
    return [Config(one, config.source, f"{config.prefix}{key}.") for one in parts]


def _conditioner(part: Config) -> Conditioner:
    def number(key: str, default: float) -> float:
        return default if part.optional(key) is None else part.number(key)

    return Conditioner(
        kind=part.text("type"),
        name=part.text("name"),
        width=round(number("cond_dim", 0)),
        projection=part.optional("projection") or "none",
        may_be_absent=part.optional("uncond_type") == "learned",
        least=number("min_val", 0.0),
        most=number("max_val", 1.0),
        n_inputs=round(number("input_dim", 1)),
    )
