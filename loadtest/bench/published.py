"""Checkpoints of published families with few layers and random weights; a process of its own.

    python -m loadtest.bench.published orpheus FOLDER

Every width is that of the published checkpoint, vocabulary and detokenizer included: what a layer
costs is what it costs there. Only the number of layers is smaller (`LAYERS`), so that a family
takes memory and time that any machine has. The layouts are those of the hub: written by the
library that the checkpoint comes from, where there is one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from loadtest.bench.published_chatterbox import make_chatterbox
from loadtest.bench.published_cosyvoice import make_cosyvoice2
from loadtest.bench.published_espnet import make_bagpiper, make_opuslm
from loadtest.bench.published_glm import make_glm4_voice
from loadtest.bench.published_step import make_step_audio2
from loadtest.bench.random_weights import draw, random_model, save_tokenizer
from loadtest.gpu_check.sizes import LLAMA_3B, QWEN_CODEC, SNAC_24KHZ

LAYERS: Final = {
    "orpheus": (4, 28),
    "csm": (4, 16),
    "qwen3-tts": (6, 28),
    "zonos": (6, 26),
    "opuslm": (2, 32),
    "bagpiper": (2, 36),
    "cosyvoice2": (8, 24),
    "chatterbox": (8, 30),
    "step-audio2": (2, 28),
    "glm4-voice": (2, 40),
}
"""Layers here, and in the published checkpoint."""
ROPE: Final = {**LLAMA_3B["rope_scaling"], "rope_theta": LLAMA_3B["rope_theta"]}
SPEECH_TOKENIZER: Final = {
    **QWEN_CODEC,
    "model_type": "qwen3_tts_tokenizer_12hz",
    "input_sample_rate": 24_000,
    "encoder_valid_num_quantizers": 16,
    "encode_downsample_rate": 1920,
    # Not read here: as small as it can be.
    "encoder_config": {"num_hidden_layers": 1},
}
ZONOS_WIDTH, ZONOS_INNER, ZONOS_HEADS, ZONOS_KV, ZONOS_CODES = 2048, 8192, 16, 4, 1024


def make_orpheus(folder: Path, n_layers: int) -> None:
    """Llama-3.2-3B with its whole vocabulary, and SNAC."""
    import snac  # type: ignore[import-untyped] # it has no types
    from transformers import LlamaConfig, LlamaForCausalLM

    custom = [f"<custom_token_{n}>" for n in range(10 + 7 * 4096)]
    save_tokenizer(folder, ["<|begin_of_text|>", "<|eot_id|>", *custom])
    config = LlamaConfig(
        vocab_size=156_940,
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=n_layers,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters=ROPE,
    )
    model = random_model(lambda: LlamaForCausalLM(config))
    model.tie_weights()
    model.save_pretrained(folder)
    codec = folder / "snac_24khz"
    codec.mkdir()
    (codec / "config.json").write_text(json.dumps(SNAC_24KHZ))
    torch.save(snac.SNAC(**SNAC_24KHZ).state_dict(), codec / "pytorch_model.bin")


def make_csm(folder: Path, n_layers: int) -> None:
    """CSM-1B, both of its decoders, with Mimi."""
    from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig

    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"]
    first = save_tokenizer(folder, marks) - len(marks)
    plain: Any = MimiConfig()
    mimi = {**plain.to_dict(), "num_quantizers": 32, "frame_rate": 12.5}
    config = CsmConfig(
        num_hidden_layers=n_layers,
        head_dim=64,
        bos_token_id=first,
        pad_token_id=first + 2,
        audio_token_id=first + 2,
        audio_eos_token_id=first + 3,
        rope_parameters={**ROPE, "original_max_position_embeddings": 1024},
        depth_decoder_config={
            "num_hidden_layers": 4,
            "head_dim": 128,
            "rope_parameters": {**ROPE, "original_max_position_embeddings": 16},
        },
        codec_config=mimi,
    )
    model = random_model(lambda: CsmForConditionalGeneration(config))
    model.tie_weights()
    model.save_pretrained(folder)
    # The library writes down what differs from its defaults; published files state all of it.
    stated = json.loads((folder / "config.json").read_text())
    stated["codec_config"] = mimi
    (folder / "config.json").write_text(json.dumps(stated))


def make_qwen3_tts(folder: Path, n_layers: int) -> None:
    """Qwen3-TTS 1.7B CustomVoice, with its codec."""
    from qwen_stubs import stub_sound_libraries  # type: ignore[import-not-found] # of the tests

    stub_sound_libraries()
    from qwen_tts.core.models.configuration_qwen3_tts import (  # type: ignore[import-not-found]
        Qwen3TTSConfig,
    )
    from qwen_tts.core.models.modeling_qwen3_tts import (  # type: ignore[import-not-found]
        Qwen3TTSForConditionalGeneration,
    )
    from qwen_tts.core.tokenizer_12hz import (  # type: ignore[import-not-found]
        configuration_qwen3_tts_tokenizer_v2 as codec_config,
    )
    from qwen_tts.core.tokenizer_12hz import (
        modeling_qwen3_tts_tokenizer_v2 as codec_model,
    )

    marks = ["<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_bos>", "<tts_eos>", "assistant"]
    first = save_tokenizer(folder, marks) - len(marks)
    config = _qwen_config(first, n_layers)
    (folder / "config.json").write_text(json.dumps(config))
    made = random_model(lambda: Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config)))
    _save(made.state_dict(), folder)
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    (codec / "config.json").write_text(json.dumps(SPEECH_TOKENIZER))
    shape = codec_config.Qwen3TTSTokenizerV2Config(**SPEECH_TOKENIZER)
    _save(random_model(lambda: codec_model.Qwen3TTSTokenizerV2Model(shape)).state_dict(), codec)


def _qwen_config(first_mark: int, n_layers: int) -> dict[str, Any]:
    both = {"rms_norm_eps": 1e-6, "num_attention_heads": 16, "num_key_value_heads": 8}
    both |= {"head_dim": 128, "num_code_groups": 16}
    rope = {"type": "default", "rope_type": "default", "interleaved": True}
    return {
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "tts_model_size": "1b7",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_pad_token_id": first_mark + 2,
        "tts_bos_token_id": first_mark + 3,
        "tts_eos_token_id": first_mark + 4,
        "speaker_encoder_config": {},
        "talker_config": {
            **both,
            "vocab_size": 3072,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": n_layers,
            "rope_theta": 1_000_000,
            "rope_scaling": {**rope, "mrope_section": [24, 20, 20]},
            "max_position_embeddings": 32_768,
            "text_hidden_size": 2048,
            "text_vocab_size": 151_936,
            "codec_pad_id": 2148,
            "codec_bos_id": 2149,
            "codec_eos_token_id": 2150,
            "codec_think_id": 2154,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "spk_id": {"vivian": 3065},
            "spk_is_dialect": {"vivian": False},
            "codec_language_id": {"english": 2050},
            "code_predictor_config": {
                **both,
                "vocab_size": 2048,
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 5,
                "rope_theta": 1_000_000,
                "max_position_embeddings": 65_536,
            },
        },
    }


def make_zonos(folder: Path, n_layers: int) -> None:
    """Zonos v0.1, the transformer, with DAC. No library has it: its keys are written out here."""
    from transformers import DacConfig, DacModel

    width = ZONOS_WIDTH
    head_dim = width // ZONOS_HEADS
    conditioners = [
        {"type": "EspeakPhonemeConditioner", "name": "espeak"},
        {
            "type": "IntegerConditioner",
            "name": "language_id",
            "min_val": -1,
            "max_val": 126,
            "uncond_type": "learned",
        },
    ]
    config = {
        "backbone": {
            "d_model": width,
            "attn_mlp_d_intermediate": ZONOS_INNER,
            "n_layer": n_layers,
            "attn_cfg": {"num_heads": ZONOS_HEADS, "num_heads_kv": ZONOS_KV},
            "norm_epsilon": 1e-5,
        },
        "prefix_conditioner": {"conditioners": conditioners, "projection": "none"},
        "eos_token_id": ZONOS_CODES,
        "masked_token_id": ZONOS_CODES + 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    weights = {f"embeddings.{n}.weight": draw(ZONOS_CODES + 2, width) for n in range(9)}
    weights |= {f"heads.{n}.weight": draw(ZONOS_CODES + 1, width) for n in range(9)}
    norms = ["backbone.norm_f", "prefix_conditioner.norm"]
    for n in range(n_layers):
        stem = f"backbone.layers.{n}"
        norms += [f"{stem}.norm", f"{stem}.norm2"]
        rows = (ZONOS_HEADS + 2 * ZONOS_KV) * head_dim
        weights[f"{stem}.mixer.in_proj.weight"] = draw(rows, width)
        weights[f"{stem}.mixer.out_proj.weight"] = draw(width, width)
        weights[f"{stem}.mlp.fc1.weight"] = draw(2 * ZONOS_INNER, width)
        weights[f"{stem}.mlp.fc2.weight"] = draw(width, ZONOS_INNER)
    for norm in norms:
        weights[f"{norm}.weight"], weights[f"{norm}.bias"] = torch.ones(width), torch.zeros(width)
    stem = "prefix_conditioner.conditioners"
    weights[f"{stem}.0.phoneme_embedder.weight"] = draw(189, width)
    weights[f"{stem}.1.int_embedder.weight"] = draw(128, width)
    weights[f"{stem}.1.uncond_vector"] = draw(width)
    _save(weights, folder)
    shape = DacConfig(sampling_rate=44_100)
    random_model(lambda: DacModel(shape)).save_pretrained(folder / "dac_44khz")


def _save(tensors: dict[str, Tensor], folder: Path) -> None:
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors")


MAKERS: Final[dict[str, Callable[[Path, int], None]]] = {
    "orpheus": make_orpheus,
    "csm": make_csm,
    "qwen3-tts": make_qwen3_tts,
    "zonos": make_zonos,
    "opuslm": make_opuslm,
    "bagpiper": make_bagpiper,
    "cosyvoice2": make_cosyvoice2,
    "chatterbox": make_chatterbox,
    "glm4-voice": make_glm4_voice,
    "step-audio2": make_step_audio2,
}


if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]), LAYERS[sys.argv[1]][0])
