"""A small random CosyVoice 2 checkpoint folder in the published layout.

That it has this layout the references say, which load it strictly (`tests/parity`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.base import Decoded
from models.checkpoint import read_torch_file
from models.codecs.hift import Hift
from models.codecs.speech_flow import SpeechFlow
from models.codecs.token2wav import Token2Wav
from models.codecs.unet import Unet
from models.cosyvoice2.model import CosyVoiceModel, load
from models.cosyvoice2.vocoder import vocoder_config
from models.cosyvoice2.voice import Voices, read_voices
from models.hyperpyyaml import read_hyperpyyaml
from models.spec import CodecSpec
from tests.models.audio.tiny import write_camplus_onnx, write_speech_tokenizer_onnx
from tests.parity.oracles.byte_tokenizer import byte_tokenizer

SAMPLES_PER_FRAME = 960
HIDDEN, INNER, N_LAYERS, N_HEADS, N_KV_HEADS = 64, 160, 3, 4, 2
N_TEXT_IDS, N_DRAWN = 300, 6564
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 32768,
    "num_attention_heads": N_HEADS,
    "num_hidden_layers": N_LAYERS,
    "num_key_value_heads": N_KV_HEADS,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": N_TEXT_IDS,
}
YAML = """
__set_seed1: !apply:random.seed [1986]
sample_rate: 24000
llm_input_size: 64
llm_output_size: 64
spk_embed_dim: 192
qwen_pretrain_path: ''
token_frame_rate: 25
token_mel_ratio: 2
chunk_size: 25
llm: !new:cosyvoice.llm.llm.Qwen2LM
    llm_input_size: !ref <llm_input_size>
    llm_output_size: !ref <llm_output_size>
    speech_token_size: 6561
    length_normalized_loss: True
    mix_ratio: [5, 15]
    llm: !new:cosyvoice.llm.llm.Qwen2Encoder
        pretrain_path: !ref <qwen_pretrain_path>
    sampling: !name:cosyvoice.utils.common.ras_sampling
        top_p: 0.8
        top_k: 25
        win_size: 10
        tau_r: 0.1
flow: !new:cosyvoice.flow.flow.CausalMaskedDiffWithXvec
    input_size: 512
    output_size: 80
    spk_embed_dim: !ref <spk_embed_dim>
    output_type: 'mel'
    vocab_size: 6561
    input_frame_rate: !ref <token_frame_rate>
    token_mel_ratio: !ref <token_mel_ratio>
    pre_lookahead_len: 3
    encoder: !new:cosyvoice.transformer.upsample_encoder.UpsampleConformerEncoder
        output_size: 512
        attention_heads: 4
        linear_units: 64
        num_blocks: 1
        normalize_before: True
        input_layer: 'linear'
        pos_enc_layer_type: 'rel_pos_espnet'
        selfattention_layer_type: 'rel_selfattn'
        input_size: 512
        use_cnn_module: False
        macaron_style: False
        static_chunk_size: !ref <chunk_size>
    decoder: !new:cosyvoice.flow.flow_matching.CausalConditionalCFM
        in_channels: 240
        n_spks: 1
        spk_emb_dim: 80
        cfm_params: !new:omegaconf.DictConfig
            content:
                sigma_min: 1e-06
                solver: 'euler'
                t_scheduler: 'cosine'
                training_cfg_rate: 0.2
                inference_cfg_rate: 0.7
                reg_loss_type: 'l1'
        estimator: !new:cosyvoice.flow.decoder.CausalConditionalDecoder
            in_channels: 320
            out_channels: 80
            channels: [32]
            dropout: 0.0
            attention_head_dim: 8
            n_blocks: 1
            num_mid_blocks: 1
            num_heads: 2
            act_fn: 'gelu'
            static_chunk_size: !ref <chunk_size> * <token_mel_ratio>
hift: !new:cosyvoice.hifigan.generator.HiFTGenerator
    in_channels: 80
    base_channels: 32
    nb_harmonics: 8
    sampling_rate: !ref <sample_rate>
    nsf_alpha: 0.1
    nsf_sigma: 0.003
    nsf_voiced_threshold: 10
    upsample_rates: [8, 5, 3]
    upsample_kernel_sizes: [16, 11, 7]
    istft_params:
        n_fft: 16
        hop_len: 4
    resblock_kernel_sizes: [3, 7, 11]
    resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    source_resblock_kernel_sizes: [7, 7, 11]
    source_resblock_dilation_sizes: [[1, 3, 5], [1, 3, 5], [1, 3, 5]]
    lrelu_slope: 0.1
    audio_limit: 0.99
    f0_predictor: !new:cosyvoice.hifigan.f0_predictor.ConvRNNF0Predictor
        num_class: 1
        in_channels: 80
        cond_channels: 16
get_tokenizer: !name:cosyvoice.tokenizer.tokenizer.get_qwen_tokenizer
    token_path: !ref <qwen_pretrain_path>
feat_extractor: !name:matcha.utils.audio.mel_spectrogram
    n_fft: 1920
    num_mels: 80
    sampling_rate: !ref <sample_rate>
    hop_size: 480
    win_size: 1920
    fmin: 0
    fmax: 8000
    center: False
"""
PLAIN = ("source_downs", "m_source", "f0_predictor.classifier")
"""Layers of the vocoder without weight norm."""


def make_checkpoint(folder: Path) -> Path:
    """All files that a checkpoint must have."""
    generator = torch.Generator().manual_seed(41)
    text = folder / "CosyVoice-BlankEN"
    text.mkdir()
    (text / "config.json").write_text(json.dumps(QWEN2))
    tokenizer: Tokenizer = byte_tokenizer(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(text / "tokenizer.json"))
    (folder / "cosyvoice2.yaml").write_text(YAML)
    torch.save(llm_weights(generator), folder / "llm.pt")
    config = vocoder_config(read_hyperpyyaml(folder / "cosyvoice2.yaml"))
    with torch.random.fork_rng():
        torch.manual_seed(43)
        flow = SpeechFlow(config.flow, Unet(config.unet)).state_dict()
        hift = Hift(config.hift).state_dict()
    for key, tensor in flow.items():
        enliven(key, tensor, generator)
    # A pitch between no voice and some 300 Hz.
    hift["f0_predictor.classifier.weight"].normal_(std=600.0, generator=generator)
    hift["f0_predictor.classifier.bias"].fill_(20.0)
    hift["m_source.l_linear.weight"].normal_(generator=generator)
    torch.save(flow, folder / "flow.pt")
    torch.save(hift_layout(hift), folder / "hift.pt")
    write_speech_tokenizer_onnx(folder / "speech_tokenizer_v2.onnx")
    write_camplus_onnx(folder / "campplus.onnx")
    return folder


def make_checkpoint_with_voices(folder: Path) -> Path:
    """The same with a voice of its own."""
    torch.save({"mia": saved_voice()}, folder / "spk2info.pt")
    return make_checkpoint(folder)


def saved_voice(n_codes: int = 40, **changes: object) -> dict[str, object]:
    """A voice as `spk2info.pt` keeps it."""
    generator = torch.Generator().manual_seed(47)
    codes = torch.randint(0, 6561, (1, n_codes), generator=generator, dtype=torch.int32)
    return {
        "prompt_text": torch.tensor([[104, 105]], dtype=torch.int32),
        "prompt_text_len": torch.tensor([2], dtype=torch.int32),
        "llm_prompt_speech_token": codes,
        "llm_prompt_speech_token_len": torch.tensor([n_codes], dtype=torch.int32),
        "flow_prompt_speech_token": codes,
        "flow_prompt_speech_token_len": torch.tensor([n_codes], dtype=torch.int32),
        "prompt_speech_feat": torch.randn(1, 2 * n_codes, 80, generator=generator),
        "prompt_speech_feat_len": torch.tensor([2 * n_codes], dtype=torch.int32),
        "flow_embedding": torch.randn(1, 192, generator=generator),
        "llm_embedding": torch.randn(1, 192, generator=generator),
        **changes,
    }


def enliven(key: str, tensor: Tensor, generator: torch.Generator) -> None:
    """Other random values, with which what comes out depends on all that goes in."""
    if key.endswith("bias"):
        tensor.normal_(std=0.1, generator=generator)
    elif tensor.dim() == 1:
        tensor.uniform_(0.5, 1.5, generator=generator)
    else:
        tensor.normal_(std=tensor[0].numel() ** -0.5, generator=generator)


def llm_weights(generator: torch.Generator) -> dict[str, Tensor]:
    """Those of `llm.pt`. It speaks until its limit: an end is never the likeliest."""

    def drawn(*shape: int) -> Tensor:
        return 0.15 * torch.randn(shape, generator=generator)

    stem, head_dim = "llm.model.model.", HIDDEN // N_HEADS
    weights = {
        f"{stem}embed_tokens.weight": drawn(N_TEXT_IDS, HIDDEN),
        f"{stem}norm.weight": torch.ones(HIDDEN),
        "llm_embedding.weight": drawn(2, HIDDEN),
        "speech_embedding.weight": drawn(N_DRAWN, HIDDEN),
        "llm_decoder.weight": drawn(N_DRAWN, HIDDEN),
        "llm_decoder.bias": drawn(N_DRAWN),
    }
    weights["llm.model.lm_head.weight"] = weights[f"{stem}embed_tokens.weight"]
    weights["llm_decoder.bias"][-3:] = -30.0
    for idx in range(N_LAYERS):
        layer = f"{stem}layers.{idx}."
        for name, n_heads in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS)):
            weights[f"{layer}self_attn.{name}_proj.weight"] = drawn(n_heads * head_dim, HIDDEN)
            weights[f"{layer}self_attn.{name}_proj.bias"] = drawn(n_heads * head_dim)
        weights[f"{layer}self_attn.o_proj.weight"] = drawn(HIDDEN, HIDDEN)
        weights[f"{layer}mlp.gate_proj.weight"] = drawn(INNER, HIDDEN)
        weights[f"{layer}mlp.up_proj.weight"] = drawn(INNER, HIDDEN)
        weights[f"{layer}mlp.down_proj.weight"] = drawn(HIDDEN, INNER)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = torch.ones(HIDDEN)
    return weights


def hift_layout(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the vocoder as `hift.pt` has them: weights in two parts."""
    laid: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        stem, _, part = key.rpartition(".")
        if part == "alpha":
            laid[key] = tensor.flatten()
        elif part == "weight" and not key.startswith(PLAIN):
            norm = tensor.flatten(1).norm(dim=1).view(-1, 1, 1)
            laid[f"{stem}.parametrizations.weight.original0"] = norm
            laid[f"{stem}.parametrizations.weight.original1"] = tensor
        else:
            laid[key] = tensor
    return laid


class CodesAsSound(nn.Module):
    """In place of a detokenizer: all samples of a frame are its speech token, in 2**-13."""

    spec = CodecSpec(chunk_frames=(5, 25))

    def seed(self, codes: Tensor, mel: Tensor, speaker: Tensor) -> dict[str, Tensor]:
        """Nothing is left of a voice."""
        assert mel.shape == (80, 2 * len(codes))
        assert speaker.shape == (192,)
        return {}

    def decode(
        self,
        frames: Tensor,
        n_valid: Tensor,
        state: dict[str, Tensor],
        is_first: Tensor,
        is_last: Tensor,
    ) -> Decoded:
        """As many samples as a frame has."""
        pcm = frames[:, :, 0].repeat_interleave(SAMPLES_PER_FRAME, dim=1) * 2.0**-13
        return Decoded(pcm=pcm, n_samples=n_valid * SAMPLES_PER_FRAME, state={})


def codes_in(pcm: npt.NDArray[np.float32]) -> list[int]:
    """The speech tokens of such sound."""
    codes: list[int] = (pcm[::SAMPLES_PER_FRAME] * 2**13).round().astype(int).tolist()
    return codes


def load_codes_as_sound(folder: Path) -> CosyVoiceModel:
    """The model of a folder with such a detokenizer."""
    model = load(folder)
    codec = cast("Token2Wav", CodesAsSound())
    spec = replace(model.spec, codec=codec.spec)
    weights, voices = read_torch_file(folder / "llm.pt"), model.voices
    named = read_voices(folder / "spk2info.pt", model.config.vocoder, model.config.llama.n_ids)
    return CosyVoiceModel(
        model.config,
        spec,
        model.tokenizer,
        weights,
        codec,
        Voices(voices.listener, named, codec.seed),
    )
