"""Shape and ids of a `step-audio2` checkpoint. Everything is read from its files; no weights here.

Ids with a meaning are those that the tokenizer gives their names.

Source: stepfun-ai/Step-Audio2 (Apache-2.0), `stepaudio2.py`, and the `modeling_step_audio_2.py` and
`configuration_step_audio_2.py` of the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from models.audio.whisper_encoder import EncoderShape
from models.checkpoint import Config, read_config
from models.errors import WeightError
from models.hub import Needs, Part
from models.hugging_face import LlamaConfig, llama_config, read_tokenizer
from models.layers.transformer import BlockStyle
from models.step_audio2.vocoder import FLOW_FILE, HIFT_FILE, VocoderConfig, read_vocoder_config

MODEL_TYPE: Final = "step_audio_2"
STYLE: Final = BlockStyle(has_bias=True)
MAX_POSITIONS: Final = 6144
"""Rows of a stream: the 4096 that the reference generates at most, and 2048 for the prompt. The
checkpoint was trained for more, and a page pool for such streams would not fit anywhere."""
TOKEN2WAV: Final = "token2wav"
TOKENIZER_FILE: Final = "speech_tokenizer_v2_25hz.onnx"
SPEAKER_FILE: Final = "campplus.onnx"
VOICES_FOLDER: Final = "assets"
DEFAULT_VOICE: Final = "default_female"
VOICE_SOURCE: Final = "assets/default_female.wav of https://github.com/stepfun-ai/Step-Audio2"
N_MEL_PADDING: Final = 479
"""Samples of silence behind each piece that is heard. Source: `log_mel_spectrogram`."""
N_UNSEEN_FRAMES: Final = 2
"""Mel frames of that padding, which attention does not look at. Source: `padding_mels`."""
N_POOLED: Final = 2
"""Rows of the encoder that become one. Source: `AudioEncoder.avg_pooler`."""
ADAPTER_PADDING: Final = 1
MLP_RATIO: Final = 4

NAMES: Final = {
    "turn": "<|BOT|>",
    "end": "<|EOT|>",
    "hearing": "<audio_start>",
    "heard": "<audio_end>",
    "patch": "<audio_patch>",
    "speaking": "<tts_start>",
    "spoken": "<tts_end>",
    "first_code": "<audio_0>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIds:
    """Ids with a meaning.

    Args:
        turn: opens a message.
        end: closes a message.
        hearing: opens a piece of heard audio.
        heard: closes it.
        patch: stands where a row of heard audio is.
        speaking: opens speech: text and codes mixed.
        spoken: closes speech.
        first_code: code 0; all others follow, and a blank behind the last.
        marks: all ids of the tokenizer that are no text.
    """

    turn: int
    end: int
    hearing: int
    heard: int
    patch: int
    speaking: int
    spoken: int
    first_code: int
    marks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """What brings rows of the encoder into the prompt.

    Args:
        kernel: of its convolution.
        stride: of its convolution.
        hidden: of the prompt's rows.
    """

    kernel: int
    stride: int
    hidden: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """A checkpoint.

    Args:
        decoder: the backbone; its `n_ids` are the whole vocabulary.
        ids: with a meaning.
        encoder: of heard audio.
        adapter: behind the encoder.
        vocoder: codes to sound.
    """

    decoder: LlamaConfig
    ids: StepIds
    encoder: EncoderShape
    adapter: AdapterShape
    vocoder: VocoderConfig

    @property
    def n_codes(self) -> int:
        """Of speech; the id behind them is a blank."""
        return self.vocoder.n_codes

    @property
    def n_used_ids(self) -> int:
        """Ids up to the blank; what the vocabulary has behind it means nothing."""
        return self.ids.first_code + self.n_codes + 1


def is_step_audio2(folder: Path) -> bool:
    """Whether a folder holds this family."""
    path = folder / "config.json"
    return path.is_file() and read_config(path).optional("model_type") == MODEL_TYPE


def read_step_config(folder: Path) -> StepConfig:
    """What a checkpoint's files state. Raises: `WeightError`, it names the key or the token."""
    config = read_config(folder / "config.json")
    config.expect("model_type", MODEL_TYPE)
    decoder = _decoder(config.part("text_config"))
    heard = config.part("audio_encoder_config")
    heard.expect("llm_dim", decoder.backbone.hidden)
    vocoder = read_vocoder_config(folder / TOKEN2WAV)
    ids = read_ids(read_tokenizer(folder), vocoder.n_codes)
    n_used = ids.first_code + vocoder.n_codes + 1
    if decoder.n_ids < n_used:
        raise WeightError(
            f"config.json: text_config.vocab_size {decoder.n_ids} has no room for the codes of the "
            f"tokenizer, which end at {n_used}"
        )
    return StepConfig(
        decoder=decoder,
        ids=ids,
        encoder=_encoder(heard),
        adapter=AdapterShape(
            kernel=heard.count("kernel_size"),
            stride=heard.count("adapter_stride"),
            hidden=decoder.backbone.hidden,
        ),
        vocoder=vocoder,
    )


def read_ids(tokenizer: Tokenizer, n_codes: int) -> StepIds:
    """The ids with a meaning. Raises: `WeightError`, it names the token."""
    found = {field: _token(tokenizer, name) for field, name in NAMES.items()}
    first = found["first_code"]
    for code in (n_codes - 1, n_codes):
        name = f"<audio_{code}>"
        idx = _token(tokenizer, name)
        if idx != first + code:
            raise WeightError(
                f"the tokenizer puts {name!r} at {idx}, and {NAMES['first_code']!r} at {first}: "
                f"codes must follow one another"
            )
    added = tokenizer.get_added_tokens_decoder()
    special = (idx for idx, token in added.items() if token.special)
    marks = {*found.values(), *special, *range(first, first + n_codes + 1)}
    return StepIds(**found, marks=tuple(sorted(marks)))


def needs(folder: Path) -> Needs:
    """What is read of a checkpoint of the hub."""
    files = (FLOW_FILE, HIFT_FILE, TOKENIZER_FILE, SPEAKER_FILE)
    return Needs(parts=(Part(folder=TOKEN2WAV, weights=files),))


def _decoder(config: Config) -> LlamaConfig:
    values = {
        # The rule of the library for files that do not state it.
        "head_dim": config.count("hidden_size") // config.count("num_attention_heads"),
        "attention_bias": STYLE.has_bias,
        **config.values,
    }
    stated = Config(values, config.source, config.prefix)
    stated.expect("num_attention_groups", stated.count("num_key_value_heads"))
    return llama_config(stated, max_positions=MAX_POSITIONS, style=STYLE)


def _encoder(config: Config) -> EncoderShape:
    hidden = config.count("n_audio_state")
    return EncoderShape(
        n_mels=config.count("n_mels"),
        hidden=hidden,
        n_heads=config.divisor("n_audio_head", hidden),
        inner=MLP_RATIO * hidden,
        n_layers=config.count("n_audio_layer"),
        max_rows=config.count("n_audio_ctx"),
    )


def _token(tokenizer: Tokenizer, name: str) -> int:
    found = tokenizer.token_to_id(name)
    if found is None:
        raise WeightError(f"the tokenizer has no token {name!r}: this is no Step-Audio 2")
    return int(found)
