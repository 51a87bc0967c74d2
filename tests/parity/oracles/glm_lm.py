"""`transformers` GLM: a small random GLM-4-Voice LM in the hub's layout, and its rollouts.

Without inputs it makes the checkpoint, with the keys of ChatGLM. With `prompt<n>` it gives
`logits<n>` of each prompt's last row and the likeliest ids after it: `free<n>` of all, as the
reference draws, and `rows<n>` in runs of 13 of text and 26 of speech, which are written out here
once more: a run of text that begins with speech, or comes to it, is the last.
"""

import base64
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import GlmConfig, GlmForCausalLM

N_CODES = 64
MERGED = [b"he", b"ll", b"hell", b" th", b" the", b"\n\n", b"on", b"in", b" a"]
MARKS = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    *[f"<|reserved_{n}|>" for n in range(5)],
]
N_TEXT = 256 + len(MERGED)
FIRST = N_TEXT + len(MARKS)
ENDS = [N_TEXT, N_TEXT + 7, N_TEXT + 9]
N_IDS = FIRST + N_CODES
N_PADDED = N_IDS + 7
ROTARY = "transformer.rotary_pos_emb.inv_freq"
CONFIG = GlmConfig(
    vocab_size=N_PADDED,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=1024,
    rms_norm_eps=3.90625e-08,
    pad_token_id=ENDS[0],
    eos_token_id=ENDS,
    rope_parameters={"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
)
STATED = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "auto_map": {"AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_residual_connection_post_layernorm": False,
    "eos_token_id": ENDS,
    "ffn_hidden_size": CONFIG.intermediate_size,
    "hidden_size": CONFIG.hidden_size,
    "kv_channels": CONFIG.head_dim,
    "layernorm_epsilon": CONFIG.rms_norm_eps,
    "multi_query_attention": True,
    "multi_query_group_num": CONFIG.num_key_value_heads,
    "num_attention_heads": CONFIG.num_attention_heads,
    "num_layers": CONFIG.num_hidden_layers,
    "original_rope": True,
    "pad_token_id": ENDS[0],
    "padded_vocab_size": N_PADDED,
    "post_layer_norm": True,
    "rmsnorm": True,
    "rope_ratio": 2,
    "seq_length": CONFIG.max_position_embeddings,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": N_PADDED,
}


def make(folder: Path) -> None:
    """A checkpoint in the layout of the hub, in two shards; no weight of it is trained."""
    tokens = [*[bytes([one]) for one in range(256)], *MERGED]
    lines = [f"{base64.b64encode(t).decode()} {rank}\n" for rank, t in enumerate(tokens)]
    (folder / "tokenizer.model").write_text("".join(lines))
    added = [*MARKS, *[f"<|audio_{n}|>" for n in range(N_CODES)]]
    named = {
        str(N_TEXT + n): {"content": content, "special": True} for n, content in enumerate(added)
    }
    settings = {"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(STATED))
    tensors = chatglm(model().state_dict())
    keys = sorted(tensors)
    shards = {}
    for n, part in enumerate((keys[::2], keys[1::2]), start=1):
        name = f"model-0000{n}-of-00002.safetensors"
        save_file({key: tensors[key].contiguous() for key in part}, folder / name)
        shards |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def model() -> GlmForCausalLM:
    """Every weight drawn; neither ends nor padding are ever the likeliest."""
    made = GlmForCausalLM(CONFIG).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif parameter.dim() > 1:
                parameter.normal_(std=0.15)
            else:
                parameter.uniform_(0.7, 1.3)
        made.lm_head.weight[ENDS] = 0.0
        made.lm_head.weight[N_IDS:] = 0.0
        # Speech in the midst of text is to be rare.
        made.lm_head.weight[FIRST:N_IDS] *= 0.8
    return made


def chatglm(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same under ChatGLM's keys: queries, keys and values lie in one matrix."""
    own = {
        "transformer.embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "transformer.encoder.final_layernorm.weight": tensors["model.norm.weight"],
        "transformer.output_layer.weight": tensors["lm_head.weight"],
        ROTARY: torch.zeros(CONFIG.head_dim // 4),
    }
    for n in range(CONFIG.num_hidden_layers):
        theirs, ours = f"transformer.encoder.layers.{n}.", f"model.layers.{n}."
        for kind in ("weight", "bias"):
            parts = [tensors[f"{ours}self_attn.{one}_proj.{kind}"] for one in "qkv"]
            own[f"{theirs}self_attention.query_key_value.{kind}"] = torch.cat(parts)
        for their_name, name in (
            ("self_attention.dense", "self_attn.o_proj"),
            ("mlp.dense_h_to_4h", "mlp.gate_up_proj"),
            ("mlp.dense_4h_to_h", "mlp.down_proj"),
            ("input_layernorm", "input_layernorm"),
            ("post_attention_layernorm", "post_attention_layernorm"),
        ):
            own[f"{theirs}{their_name}.weight"] = tensors[f"{ours}{name}.weight"]
    return own


@torch.no_grad()
def rollout(lm: GlmForCausalLM, prompt: torch.Tensor, n_rows: int, choose) -> dict:
    """Logits of the prompt's last row, and the ids that `choose` takes of each row's logits."""
    ids, cache, rows, first = prompt.view(1, -1), None, [], None
    while len(rows) < n_rows:
        out = lm(ids, past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, out.logits[0, -1]
        first = logits.clone() if first is None else first
        rows.append(choose(logits))
        if rows[-1] in ENDS:
            break
        ids = torch.tensor([[rows[-1]]])
    return {"logits": first, "rows": torch.tensor(rows)}


class Runs:
    """Takes ids in runs; speech alone once the text is over."""

    def __init__(self) -> None:
        self.is_text, self.left, self.n_rows = True, 13, 0

    def __call__(self, logits: torch.Tensor) -> int:
        allowed = torch.full_like(logits, -torch.inf)
        if self.is_text:
            allowed[:N_TEXT] = logits[:N_TEXT]
        if not self.is_text or self.n_rows:
            allowed[FIRST:N_IDS] = logits[FIRST:N_IDS]
        chosen = int(allowed.argmax())
        self.n_rows += 1
        self.left -= 1
        if self.is_text and chosen >= FIRST:
            self.is_text, self.left = False, 1 << 30
        elif not self.left:
            self.is_text = not self.is_text
            self.left = 13 if self.is_text else 26
        return chosen


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if not inputs:
        make(folder)
    else:
        lm = model()
        n_rows = int(inputs["n_rows"])
        for name in [name for name in inputs if name.startswith("prompt")]:
            n = name.removeprefix("prompt")
            found = rollout(lm, inputs[name], n_rows, Runs())
            outputs |= {f"logits{n}": found["logits"], f"rows{n}": found["rows"]}
            free = rollout(lm, inputs[name], n_rows, lambda logits: int(logits.argmax()))
            outputs[f"free{n}"] = free["rows"]
    save_file(outputs, folder / "outputs.safetensors")
