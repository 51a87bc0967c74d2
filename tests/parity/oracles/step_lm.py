"""A reference of Step-Audio 2 composed here: `transformers` Qwen2, and what hears of Whisper's.

The remote code of the checkpoint is in no release. The backbone and the layers of the encoder are
the library's; pooling, adapter, lengths and where rows are put are written out. Without inputs it
makes a small random checkpoint in the published layout. With `pcm<n>` it gives `rows<n>`, those of
all pieces in a line. With `prompt<n>`, and `pcm<n>` where something is heard, it gives `logits<n>`
of the last row and `ids<n>`, the likeliest, one after another.
"""

import json
import sys
from pathlib import Path

import torch
from byte_tokenizer import byte_tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2Config, Qwen2ForCausalLM, WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

N_CODES = 6561
MARKS = [
    "<|BOT|>",
    "<|EOT|>",
    "<audio_start>",
    "<audio_end>",
    "<audio_patch>",
    "<unused_0>",
    "<tts_start>",
    "<tts_end>",
    "<tts_pad>",
    *(f"<audio_{n}>" for n in range(N_CODES + 1)),
]
N_SPARE = 30
"""Ids behind the last code, which mean nothing."""
HIDDEN, HEARD, INNER, N_MELS = 48, 32, 40, 128
PIECE, PADDING = 400_000, 479


def lm_config(n_ids: int) -> Qwen2Config:
    """A tiny backbone."""
    return Qwen2Config(
        vocab_size=n_ids,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16_384,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )


def encoder_config() -> WhisperConfig:
    """A tiny encoder."""
    return WhisperConfig(
        num_mel_bins=N_MELS,
        d_model=HEARD,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=4 * HEARD,
        max_source_positions=1500,
    )


def stated(n_ids: int) -> dict:
    """What `config.json` says, by the published keys."""
    lm, heard = lm_config(n_ids), encoder_config()
    return {
        "architectures": ["StepAudio2ForCausalLM"],
        "model_type": "step_audio_2",
        "text_config": {
            "vocab_size": n_ids,
            "hidden_size": lm.hidden_size,
            "intermediate_size": lm.intermediate_size,
            "num_hidden_layers": lm.num_hidden_layers,
            "num_attention_heads": lm.num_attention_heads,
            "num_attention_groups": lm.num_key_value_heads,
            "num_key_value_heads": lm.num_key_value_heads,
            "max_seq_len": 16_384,
            "max_position_embeddings": 16_384,
            "rms_norm_eps": lm.rms_norm_eps,
            "rope_theta": 1e6,
            "rope_scaling": None,
            "torch_dtype": "bfloat16",
        },
        "audio_encoder_config": {
            "n_mels": N_MELS,
            "n_audio_ctx": heard.max_source_positions,
            "n_audio_state": HEARD,
            "n_audio_head": heard.encoder_attention_heads,
            "n_audio_layer": heard.encoder_layers,
            "n_codebook_size": 4096,
            "llm_dim": HIDDEN,
            "kernel_size": 3,
            "adapter_stride": 2,
        },
    }


OPENAI = {
    "layers.": "blocks.",
    "embed_positions.": "positional_embedding.",
    "layer_norm.": "after_norm.",
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_after_norm": "attn_ln",
    "final_after_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
"""Names of the library's parts, and what the checkpoint calls them; one after another."""


def renamed(key: str) -> str:
    """A key of the library's encoder as the checkpoint has it."""
    for name, other in OPENAI.items():
        key = key.replace(name, other)
    return f"encoder.{key}"


def make(folder: Path) -> None:
    """A checkpoint of two shards; no weight of it is trained."""
    tokenizer = byte_tokenizer(MARKS)
    tokenizer.save(str(folder / "tokenizer.json"))
    n_ids = tokenizer.get_vocab_size() + N_SPARE
    (folder / "config.json").write_text(json.dumps(stated(n_ids)))
    torch.manual_seed(17)
    weights = {}
    for key, tensor in Qwen2ForCausalLM(lm_config(n_ids)).state_dict().items():
        is_norm = tensor.dim() == 1 and not key.endswith("bias")
        drawn = 0.5 + torch.rand(tensor.shape) if is_norm else 0.2 * torch.randn(tensor.shape)
        weights[key] = drawn
    weights["model.embed_tokens.weight"] = 0.5 * torch.randn(n_ids, HIDDEN)
    head = weights["lm_head.weight"]
    # Words as often as codes, though there are so many more of those.
    first = tokenizer.token_to_id("<audio_0>")
    head[:first] *= 1.5
    # It goes on until it is ended, and opens nothing: a logit of 0 is never the highest of all.
    for mark in MARKS[:9]:
        head[tokenizer.token_to_id(mark)] = 0.0
    # Nor are bytes of characters that take several, which come to nothing by themselves.
    for idx in range(first):
        if not tokenizer.id_to_token(idx).isascii():
            head[idx] = 0.0
    for key, tensor in WhisperEncoder(encoder_config()).state_dict().items():
        is_norm = "norm" in key and key.endswith("weight")
        fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 25
        drawn = 0.5 + torch.rand(tensor.shape) if is_norm else torch.randn(tensor.shape)
        weights[renamed(key)] = drawn if is_norm else drawn / fan_in**0.5
    for name, *shape in (
        ("conv", HEARD, HEARD, 3),
        ("linear1", INNER, HEARD),
        ("linear2", HIDDEN, INNER),
    ):
        drawn = torch.randn(shape)
        weights[f"adapter.{name}.weight"] = drawn / drawn[0].numel() ** 0.5
        weights[f"adapter.{name}.bias"] = 0.1 * torch.randn(shape[0])
    save_shards(folder, weights)


def save_shards(folder: Path, weights: dict[str, Tensor]) -> None:
    """Two files, and the index that says what is where."""
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    places = {key: names[idx % 2] for idx, key in enumerate(sorted(weights))}
    for name in names:
        own = {k: v.contiguous() for k, v in weights.items() if places[k] == name}
        save_file(own, folder / name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


class Reference:
    """One checkpoint, one sequence at a time."""

    def __init__(self, folder: Path) -> None:
        weights = {}
        for path in sorted(folder.glob("model-*.safetensors")):
            weights |= load_file(path)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.first = self.tokenizer.token_to_id("<audio_0>")
        own = {k: v for k, v in weights.items() if not k.startswith(("encoder.", "adapter."))}
        self.lm = Qwen2ForCausalLM(lm_config(len(own["lm_head.weight"]))).eval()
        self.lm.load_state_dict(own)
        self.encoder = WhisperEncoder(encoder_config()).eval()
        keys = {key: weights[renamed(key)] for key in self.encoder.state_dict()}
        self.encoder.load_state_dict(keys)
        self.adapter = {k[8:]: v for k, v in weights.items() if k.startswith("adapter.")}
        self.extractor = WhisperFeatureExtractor(feature_size=N_MELS)

    def hear(self, pcm: Tensor) -> list[Tensor]:
        """Rows of each piece."""
        return [self.hear_piece(piece) for piece in pcm.split(PIECE)]

    def hear_piece(self, pcm: Tensor) -> Tensor:
        """Rows of one piece."""
        padded = functional.pad(pcm, (0, PADDING)).numpy()
        heard = self.extractor(
            padded, sampling_rate=16_000, padding="longest", return_tensors="pt", truncation=False
        )
        x = heard.input_features
        n_frames = x.shape[2]
        for conv in (self.encoder.conv1, self.encoder.conv2):
            x = functional.gelu(conv(x))
        x = x.transpose(1, 2) + self.encoder.embed_positions.weight[: x.shape[2]]
        # Of the rows those are seen whose frame is none of the last two.
        is_seen = torch.arange(n_frames)[(n_frames + 1) % 2 :: 2] < n_frames - 2
        mask = torch.zeros(1, 1, x.shape[1], x.shape[1])
        mask = mask.masked_fill(~is_seen, torch.finfo(torch.float32).min)
        for layer in self.encoder.layers:
            x = layer(x, mask)
        x = functional.avg_pool1d(x.transpose(1, 2), 2, 2).transpose(1, 2)
        x = self.encoder.layer_norm(x)
        own = self.adapter
        x = functional.conv1d(x.mT, own["conv.weight"], own["conv.bias"], stride=2, padding=1)
        x = functional.linear(functional.gelu(x).mT, own["linear1.weight"], own["linear1.bias"])
        x = functional.linear(functional.relu(x), own["linear2.weight"], own["linear2.bias"])
        n_rows = ((n_frames - 2 + 1) // 2 // 2 - 1) // 2 + 1
        return x[0, :n_rows]

    @torch.no_grad()
    def go_on(self, prompt: Tensor, heard: list[Tensor], n_rows: int) -> tuple[Tensor, Tensor]:
        """First logits, and the likeliest ids."""
        x = self.lm.model.embed_tokens(prompt)
        if heard:
            x[prompt == self.tokenizer.token_to_id("<audio_patch>")] = torch.cat(heard)
        cache, ids, first = None, [], None
        for _ in range(n_rows):
            out = self.lm(inputs_embeds=x.unsqueeze(0), past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0, -1, : self.first + N_CODES + 1]
            first = logits if first is None else first
            ids.append(int(logits.argmax()))
            x = self.lm.model.embed_tokens(torch.tensor(ids[-1:]))
        return first, torch.tensor(ids)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if inputs:
        reference = Reference(folder)
        with torch.no_grad():
            heard = {k: reference.hear(v) for k, v in inputs.items() if k.startswith("pcm")}
        for name, rows in heard.items():
            outputs[name.replace("pcm", "rows")] = torch.cat(rows)
        for name in [name for name in inputs if name.startswith("prompt")]:
            number = name.removeprefix("prompt")
            rows = heard.get(f"pcm{number}", [])
            logits, ids = reference.go_on(inputs[name], rows, int(inputs["n_rows"]))
            outputs[f"logits{number}"], outputs[f"ids{number}"] = logits, ids
    else:
        make(folder)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
