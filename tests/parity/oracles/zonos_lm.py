"""A reference of Zonos composed here: `transformers` Glm with layer norms, the rest written out.

No package has the model. The backbone is Glm's, whose feed-forward, grouped heads and neighbouring
rotation are the same; settings, guidance, delays and the end are below. Without inputs it makes a
small random checkpoint. With `phonemes<n>`, and perhaps `speaker<n>`, it gives `prefix<n>` (both
rows of a pair), `logits<n>` (of the first row, for both and each codebook) and `frames<n>`, greedy.
"""

import json
import math
import sys
from pathlib import Path

import torch
from dac_decode import make as make_dac
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GlmConfig, GlmModel

N_CODES, N_CODEBOOKS, HIDDEN, INNER, N_LAYERS, N_HEADS, N_KV = 64, 9, 48, 80, 3, 4, 2
EOS, BLANK = N_CODES, N_CODES + 1
N_PHONEMES = 189
LANGUAGE, EMOTION = 24, [0.3077, 0.0256, 0.0256, 0.0256, 0.0256, 0.0256, 0.2564, 0.3077]
SCALE = 2.0
CONDITIONERS = [
    {"type": "EspeakPhonemeConditioner", "name": "espeak"},
    {
        "type": "PassthroughConditioner",
        "name": "speaker",
        "cond_dim": 16,
        "uncond_type": "learned",
        "projection": "linear",
    },
    {
        "type": "FourierConditioner",
        "name": "emotion",
        "input_dim": 8,
        "uncond_type": "learned",
    },
    {
        "type": "FourierConditioner",
        "name": "fmax",
        "min_val": 0,
        "max_val": 24000,
        "uncond_type": "learned",
    },
    {
        "type": "FourierConditioner",
        "name": "pitch_std",
        "min_val": 0,
        "max_val": 400,
        "uncond_type": "learned",
    },
    {
        "type": "FourierConditioner",
        "name": "speaking_rate",
        "min_val": 0,
        "max_val": 40,
        "uncond_type": "learned",
    },
    {
        "type": "IntegerConditioner",
        "name": "language_id",
        "min_val": -1,
        "max_val": 126,
        "uncond_type": "learned",
    },
]
TOLD = {"emotion": EMOTION, "fmax": [22050.0], "pitch_std": [20.0], "speaking_rate": [15.0]}


def make(folder: Path) -> None:
    """A checkpoint in the layout of the hub, every weight drawn."""
    config = {
        "backbone": {
            "d_model": HIDDEN,
            "d_intermediate": 0,
            "attn_mlp_d_intermediate": INNER,
            "n_layer": N_LAYERS,
            "ssm_cfg": {},
            "attn_layer_idx": list(range(N_LAYERS)),
            "attn_cfg": {"num_heads": N_HEADS, "num_heads_kv": N_KV},
            "rms_norm": False,
            "residual_in_fp32": False,
            "norm_epsilon": 1e-5,
        },
        "prefix_conditioner": {"conditioners": CONDITIONERS, "projection": "linear"},
        "eos_token_id": EOS,
        "masked_token_id": BLANK,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(11)
    head_dim = HIDDEN // N_HEADS
    shapes = {f"embeddings.{n}.weight": (BLANK + 1, HIDDEN) for n in range(N_CODEBOOKS)}
    shapes |= {f"heads.{n}.weight": (EOS + 1, HIDDEN) for n in range(N_CODEBOOKS)}
    for n in range(N_LAYERS):
        stem = f"backbone.layers.{n}."
        shapes[f"{stem}mixer.in_proj.weight"] = ((N_HEADS + 2 * N_KV) * head_dim, HIDDEN)
        shapes[f"{stem}mixer.out_proj.weight"] = (HIDDEN, N_HEADS * head_dim)
        shapes[f"{stem}mlp.fc1.weight"] = (2 * INNER, HIDDEN)
        shapes[f"{stem}mlp.fc2.weight"] = (HIDDEN, INNER)
        for norm in ("norm", "norm2"):
            shapes[f"{stem}{norm}.weight"] = shapes[f"{stem}{norm}.bias"] = (HIDDEN,)
    shapes["backbone.norm_f.weight"] = shapes["backbone.norm_f.bias"] = (HIDDEN,)
    prefix = "prefix_conditioner."
    for name in ("norm", "project"):
        shapes[f"{prefix}{name}.weight"] = (HIDDEN,) if name == "norm" else (HIDDEN, HIDDEN)
        shapes[f"{prefix}{name}.bias"] = (HIDDEN,)
    for n, one in enumerate(CONDITIONERS):
        stem = f"{prefix}conditioners.{n}."
        if one.get("uncond_type"):
            shapes[f"{stem}uncond_vector"] = (HIDDEN,)
        if one["type"].startswith("Fourier"):
            shapes[f"{stem}weight"] = (HIDDEN // 2, one.get("input_dim", 1))
        elif one["type"].startswith("Integer"):
            shapes[f"{stem}int_embedder.weight"] = (one["max_val"] - one["min_val"] + 1, HIDDEN)
        elif one["type"].startswith("Espeak"):
            shapes[f"{stem}phoneme_embedder.weight"] = (N_PHONEMES, HIDDEN)
        else:
            shapes[f"{stem}project.weight"] = (HIDDEN, one["cond_dim"])
            shapes[f"{stem}project.bias"] = (HIDDEN,)
    weights = {}
    for name, shape in shapes.items():
        if "norm" in name.split(".")[-2]:
            weights[name] = (
                0.5 + torch.rand(shape) if name.endswith("weight") else 0.1 * torch.randn(shape)
            )
        else:
            weights[name] = torch.randn(shape) * (0.2 if len(shape) > 1 else 0.5)
    # It speaks until the limit: a logit of 0 is never the highest of 64.
    weights["heads.0.weight"][EOS] = 0.0
    save_file(weights, folder / "model.safetensors")
    make_dac(folder / "dac_44khz")


def backbone(weights: dict[str, torch.Tensor]) -> GlmModel:
    """Glm with this model's norms and weights."""
    config = GlmConfig(
        vocab_size=8,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV,
        head_dim=HIDDEN // N_HEADS,
        attention_bias=False,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,
        },
        pad_token_id=0,
    )
    model = GlmModel(config).eval()
    for layer in model.layers:
        layer.input_layernorm = nn.LayerNorm(HIDDEN, eps=1e-5)
        layer.post_attention_layernorm = nn.LayerNorm(HIDDEN, eps=1e-5)
    model.norm = nn.LayerNorm(HIDDEN, eps=1e-5)
    renamed = {"embed_tokens.weight": torch.zeros(8, HIDDEN)}
    head_dim = HIDDEN // N_HEADS
    for n in range(N_LAYERS):
        theirs, ours = f"layers.{n}.", f"backbone.layers.{n}."
        sizes = [N_HEADS * head_dim, N_KV * head_dim, N_KV * head_dim]
        for name, part in zip(
            "qkv", weights[f"{ours}mixer.in_proj.weight"].split(sizes), strict=True
        ):
            renamed[f"{theirs}self_attn.{name}_proj.weight"] = part
        renamed[f"{theirs}self_attn.o_proj.weight"] = weights[f"{ours}mixer.out_proj.weight"]
        up, gate = weights[f"{ours}mlp.fc1.weight"].chunk(2)
        renamed[f"{theirs}mlp.gate_up_proj.weight"] = torch.cat([gate, up])
        renamed[f"{theirs}mlp.down_proj.weight"] = weights[f"{ours}mlp.fc2.weight"]
        for kind in ("weight", "bias"):
            renamed[f"{theirs}input_layernorm.{kind}"] = weights[f"{ours}norm.{kind}"]
            renamed[f"{theirs}post_attention_layernorm.{kind}"] = weights[f"{ours}norm2.{kind}"]
    for kind in ("weight", "bias"):
        renamed[f"norm.{kind}"] = weights[f"backbone.norm_f.{kind}"]
    model.load_state_dict(renamed)
    return model


def prefix_rows(
    weights: dict[str, torch.Tensor], phonemes: torch.Tensor, told: dict
) -> torch.Tensor:
    """Rows of settings; what is not told has the learned vector."""
    rows = []
    for n, one in enumerate(CONDITIONERS):
        own = {
            k.split(f"conditioners.{n}.")[1]: w
            for k, w in weights.items()
            if f"conditioners.{n}." in k
        }
        if one["name"] == "espeak":
            rows.append(own["phoneme_embedder.weight"][phonemes])
        elif one["name"] not in told:
            rows.append(own["uncond_vector"][None])
        elif one["type"].startswith("Integer"):
            rows.append(own["int_embedder.weight"][[told[one["name"]][0] - one["min_val"]]])
        elif one["type"].startswith("Passthrough"):
            rows.append((own["project.weight"] @ told[one["name"]] + own["project.bias"])[None])
        else:
            low, high = one.get("min_val", 0.0), one.get("max_val", 1.0)
            x = (torch.tensor(told[one["name"]]) - low) / (high - low)
            angles = 2 * math.pi * own["weight"] @ x
            rows.append(torch.cat([angles.cos(), angles.sin()])[None])
    stem = "prefix_conditioner."
    x = torch.cat(rows) @ weights[f"{stem}project.weight"].T + weights[f"{stem}project.bias"]
    return nn.functional.layer_norm(
        x, (HIDDEN,), weights[f"{stem}norm.weight"], weights[f"{stem}norm.bias"]
    )


@torch.no_grad()
def speak(
    weights: dict, model: GlmModel, pair: torch.Tensor, n_frames: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy codes `(n_frames, 9)`, no end; the prompt's logits `(2, 9, ids)`, not yet merged."""
    tables = [weights[f"embeddings.{n}.weight"] for n in range(N_CODEBOOKS)]
    heads = [weights[f"heads.{n}.weight"] for n in range(N_CODEBOOKS)]
    row, rows, cache, first = [BLANK] * N_CODEBOOKS, [], None, None
    x = torch.cat([pair, sum(t[c] for t, c in zip(tables, row, strict=True)).expand(2, 1, -1)], 1)
    for step in range(n_frames + N_CODEBOOKS - 1):
        out = model(inputs_embeds=x, past_key_values=cache, use_cache=True)
        cache, hidden = out.past_key_values, out.last_hidden_state[:, -1]
        if first is None:
            first = torch.stack([hidden @ head.T for head in heads], dim=1)
        row = []
        for n, head in enumerate(heads):
            told, blind = (hidden @ head.T).unbind()
            logits = blind + SCALE * (told - blind)
            n_most = EOS + 1 if n == 0 else N_CODES
            row.append(int(logits[:n_most].argmax()) if n <= step else BLANK)
        rows.append(row)
        x = sum(t[c] for t, c in zip(tables, row, strict=True)).expand(2, 1, -1)
    codes = [[rows[f + n][n] for n in range(N_CODEBOOKS)] for f in range(n_frames)]
    return torch.tensor(codes), first


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if not inputs:
        make(folder)
    else:
        weights = load_file(folder / "model.safetensors")
        model = backbone(weights)
        for name in [name for name in inputs if name.startswith("phonemes")]:
            number = name.removeprefix("phonemes")
            told = {**TOLD, "language_id": [LANGUAGE]}
            told["emotion"] = (torch.tensor(EMOTION) / sum(EMOTION)).tolist()
            if f"speaker{number}" in inputs:
                told["speaker"] = inputs[f"speaker{number}"]
            rows = [prefix_rows(weights, inputs[name], one) for one in (told, {})]
            outputs[f"prefix{number}"] = pair = torch.stack(rows)
            frames, logits = speak(weights, model, pair, int(inputs["n_frames"]))
            outputs |= {f"frames{number}": frames, f"logits{number}": logits}
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
