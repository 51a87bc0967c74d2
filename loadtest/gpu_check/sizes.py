"""The two models that are measured, as their checkpoints state them: everything but weights.

Small ones of the same make stand in where the script is only tried out. Source: `config.json` of
canopylabs/orpheus-3b-0.1-ft, hubertsiuzdak/snac_24khz, Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice and
Qwen/Qwen3-TTS-Tokenizer-12Hz.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

Values = Mapping[str, Any]
ANY_WORD: Final = "x"

LLAMA_3B: Final[Values] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "vocab_size": 156940,
}
SNAC_24KHZ: Final[Values] = {
    "sampling_rate": 24000,
    "encoder_dim": 48,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 1024,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 4096,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
_QWEN_LAYERS: Final[Values] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "num_code_groups": 16,
}
QWEN3_TTS_17B: Final[Values] = {
    "model_type": "qwen3_tts",
    "tts_model_type": "custom_voice",
    "tts_pad_token_id": 151671,
    "tts_bos_token_id": 151672,
    "tts_eos_token_id": 151673,
    "talker_config": {
        **_QWEN_LAYERS,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "max_position_embeddings": 32768,
        "vocab_size": 3072,
        "text_vocab_size": 151936,
        "text_hidden_size": 2048,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "spk_id": {"vivian": 3065},
        "spk_is_dialect": {"vivian": False},
        "codec_language_id": {"english": 2050, "chinese": 2055},
        "code_predictor_config": {
            **_QWEN_LAYERS,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 5,
            "max_position_embeddings": 65536,
            "vocab_size": 2048,
        },
    },
}
QWEN_CODEC: Final[Values] = {
    "output_sample_rate": 24000,
    "decode_upsample_rate": 1920,
    "decoder_config": {
        "attention_bias": False,
        "hidden_act": "silu",
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 64,
        "num_quantizers": 16,
        "codebook_size": 2048,
        "codebook_dim": 512,
        "latent_dim": 1024,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "sliding_window": 72,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "upsampling_ratios": [2, 2],
        "decoder_dim": 1536,
        "upsample_rates": [8, 5, 4, 3],
    },
}

_SMALL_LAYERS: Final[Values] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 128,
}
"""Heads of the real size: the kernels are built for it."""
_SMALL_DECODER: Final[Values] = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "codebook_dim": 16,
    "latent_dim": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "decoder_dim": 32,
}
SMALL_LLAMA: Final[Values] = {**LLAMA_3B, **_SMALL_LAYERS}
SMALL_SNAC: Final[Values] = {**SNAC_24KHZ, "encoder_dim": 4, "decoder_dim": 16}
SMALL_QWEN3_TTS: Final[Values] = {
    **QWEN3_TTS_17B,
    "talker_config": {
        **QWEN3_TTS_17B["talker_config"],
        **_SMALL_LAYERS,
        "text_hidden_size": 32,
        "code_predictor_config": {
            **QWEN3_TTS_17B["talker_config"]["code_predictor_config"],
            **_SMALL_LAYERS,
            "hidden_size": 32,
        },
    },
}
SMALL_QWEN_CODEC: Final[Values] = {
    **QWEN_CODEC,
    "decoder_config": {**QWEN_CODEC["decoder_config"], **_SMALL_DECODER},
}


def write_orpheus(folder: Path, *, is_small: bool) -> None:
    """What a checkpoint of Orpheus holds beside its weights."""
    _write(folder, SMALL_LLAMA if is_small else LLAMA_3B)
    _write(folder / "snac_24khz", SMALL_SNAC if is_small else SNAC_24KHZ)
    marks = {f"<custom_token_{n}>": 128256 + n for n in range(11)}
    _write_tokenizer(folder, {"<|begin_of_text|>": 128000, "<|eot_id|>": 128009, **marks})


def write_qwen3_tts(folder: Path, *, is_small: bool) -> None:
    """What a checkpoint of Qwen3-TTS holds beside its weights."""
    _write(folder, SMALL_QWEN3_TTS if is_small else QWEN3_TTS_17B)
    _write(folder / "speech_tokenizer", SMALL_QWEN_CODEC if is_small else QWEN_CODEC)
    _write_tokenizer(folder, {})


def _write(folder: Path, values: Values) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))


def _write_tokenizer(folder: Path, marks: Mapping[str, int]) -> None:
    """One id for whatever word: prompts are as long as they would be, about."""
    tokenizer = Tokenizer(WordLevel({ANY_WORD: 0, **marks}, unk_token=ANY_WORD))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
