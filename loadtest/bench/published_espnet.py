"""Checkpoints of the families that ESPnet publishes, as `loadtest.bench.published` makes others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import yaml

from loadtest.bench.random_weights import draw, random_model, save_tokenizer

N_MARKS: Final = 256
DAC: Final = {
    "hidden_dim": 512,
    "codebook_dim": 512,
    "encdec_channels": 1,
    "encdec_n_filters": 32,
    "encdec_n_residual_layers": 3,
    "encdec_ratios": [8, 5, 4, 2],
    "encdec_activation": "Snake",
    "encdec_activation_params": {},
    "encdec_norm": "weight_norm",
    "encdec_norm_params": {},
    "encdec_kernel_size": 7,
    "encdec_residual_kernel_size": 7,
    "encdec_last_kernel_size": 7,
    "encdec_dilation_base": 2,
    "encdec_causal": False,
    "encdec_pad_mode": "reflect",
    "encdec_true_skip": False,
    "encdec_compress": 2,
    "encdec_lstm": 2,
    "decoder_trim_right_ratio": 1.0,
    "decoder_final_activation": None,
    "decoder_final_activation_params": None,
    "quantizer_n_q": 8,
    "quantizer_bins": 1024,
    "quantizer_decay": 0.99,
    "quantizer_kmeans_init": False,
    "quantizer_kmeans_iters": 50,
    "quantizer_threshold_ema_dead_code": 2,
    "quantizer_target_bandwidth": [4],
    "quantizer_dropout": True,
}


def make_opuslm(folder: Path, n_layers: int) -> None:
    """OpusLM 7B, which speaks, with the DAC of ESPnet."""
    from transformers import Olmo2Config, Olmo2Model

    for part in ("tokenizer", "backbone", "espnet_codec_dac_large"):
        (folder / part).mkdir()
    save_tokenizer(folder / "tokenizer", [])
    config = Olmo2Config(
        vocab_size=100_352,
        hidden_size=4096,
        intermediate_size=11_008,
        num_hidden_layers=n_layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    config.save_pretrained(folder / "backbone")
    stated = _opuslm_config(config.vocab_size)
    (folder / "config.yaml").write_text(yaml.safe_dump(stated))
    n_ids, hidden = len(stated["token_list"]), config.hidden_size
    # The library's own table is not used: the columns share one of their own.
    config.vocab_size = 1
    backbone = random_model(lambda: Olmo2Model(config)).state_dict()
    del backbone["embed_tokens.weight"]
    weights = {f"corelm.decoders.model.{key}": tensor for key, tensor in backbone.items()}
    weights["corelm.emb.weight"] = draw(n_ids, hidden)
    weights["corelm.lm_head.weight"] = draw(n_ids, hidden)
    weights["corelm.head_emb.weight"] = draw(12, hidden)
    torch.save(weights, folder / "model.pth")
    _save_dac(folder / "espnet_codec_dac_large")


def _opuslm_config(n_text: int) -> dict[str, Any]:
    marks = {0: "<pad>", 5: "<sos/eos>", 9: "<user_input>", 10: "<assistant_output>"}
    marks |= {8: "<system_prompt>", 34: "<codec_ssl_start/end>", 35: "<text_bpe_start/end>"}
    marks |= {37: "<spk_start/end>", 81: "<codec_ssl_tts_task>"}
    marks |= {82: "<codec_ssl_plain_tts_task>", 88: "<text_dialogue_task>"}
    marks |= {89: "<audio_dialogue_task>"}
    names = [marks.get(idx, f"<unused_token_{idx}>") for idx in range(N_MARKS)]
    bias = {"special_token": [0, N_MARKS]}
    for kind, n_ids in (("ssl", 5000), ("codec", 8 * 1024), ("text_bpe", n_text)):
        bias[kind] = [len(names), len(names) + n_ids]
        names += [f"<{kind}_{idx}>" for idx in range(n_ids)]
    return {
        "model": "espnet",
        "corelm": "ar_delay",
        "corelm_conf": {"share_emb": False},
        "transformer": "huggingface",
        "transformer_conf": {"hf_model_tag": "allenai/OLMo-2-1124-7B", "n_ctx": 8192},
        "subword_choice": "huggingface",
        "subword_model": "allenai/OLMo-2-1124-7B",
        "codec_token_per_frame": 9,
        "codec_token_in_use": 9,
        "speaker_prompt_length": 500,
        "token_list": names,
        "token_bias": bias,
    }


def _save_dac(folder: Path) -> None:
    from espnet_stubs import stub_espnet_libraries  # type: ignore[import-not-found] # of the tests

    stub_espnet_libraries()
    from espnet2.gan_codec.dac.dac import DACGenerator  # type: ignore[import-not-found]

    generator = DACGenerator(sample_rate=16_000, **DAC)
    held = {f"codec.generator.{key}": tensor for key, tensor in generator.state_dict().items()}
    torch.save(held, folder / "360epoch.pth")
    conf = {"sampling_rate": 16_000, "generator_params": DAC}
    (folder / "config.yaml").write_text(yaml.safe_dump({"codec": "dac", "codec_conf": conf}))


def make_bagpiper(folder: Path, n_layers: int) -> None:
    """Bagpiper, which is made to speak at once, in guided pairs; with X-Codec."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, XcodecConfig, XcodecModel

    backbone, codec = folder / "Qwen3-8B-Base", folder / "xcodec-hubert-general"
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=n_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        architectures=["Qwen3ForCausalLM"],
    )
    config.save_pretrained(backbone)
    save_tokenizer(backbone, ["<|endoftext|>"])
    xcodec = XcodecConfig()
    xcodec.save_pretrained(codec)
    audio = {
        "codec_choice": "Xcodec",
        "codec_hf_model_tag": f"hf-audio/{codec.name}",
        "ssl_choice": None,
        "delay_interleave": True,
    }
    training = {
        "job_type": "speechlm",
        "multimodal_io": {
            "text": {"tokenizer_name": f"Qwen/{backbone.name}"},
            "discrete_audio": audio,
        },
        "model": {"model_choice": "parallel", "model_hf_tag": f"Qwen/{backbone.name}"},
    }
    (folder / "train_bagpiper.yaml").write_text(yaml.safe_dump(training, sort_keys=False))
    drawn = {"temperature": 0.8, "topk": 20, "max_step": 2048}
    decoding = {"enforce_modality": ["audio"], "text": {**drawn, "cfg": 1}}
    decoding["audio"] = {**drawn, "cfg": 3}
    (folder / "inference.yaml").write_text(yaml.safe_dump(decoding))
    config.vocab_size = N_MARKS + 151_936 + 8 * 1025
    weights = random_model(lambda: Qwen3ForCausalLM(config)).state_dict()
    weights["stream_emb.weight"] = draw(8, config.hidden_size)
    own = random_model(lambda: XcodecModel(xcodec)).state_dict()
    prefix = "multimodal_io_dict.discrete_audio.codec_model."
    weights |= {f"{prefix}{key}": tensor for key, tensor in own.items()}
    torch.save({"module": weights}, folder / "model.pt")
