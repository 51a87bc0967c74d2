"""`transformers` Llama: a small random Orpheus checkpoint, or what it makes of prompts.

Without inputs it makes the checkpoint. With `prompt<n>` it gives `logits<n>` of each prompt's last
row, and `rows<n>`, the likeliest codes that fit their slots, one after another.
"""

import sys
from pathlib import Path

import torch
from byte_tokenizer import byte_tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

N_CODES = 64
N_SLOTS = 7
N_MARKS = 10


def make(folder: Path) -> None:
    """A checkpoint in the layout of the hub; no weight of it is trained."""
    n_custom = N_MARKS + N_SLOTS * N_CODES
    custom = [f"<custom_token_{n}>" for n in range(n_custom)]
    tokenizer = byte_tokenizer(["<|begin_of_text|>", "<|eot_id|>", *custom])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            # Within a test's length, so that the stretched frequencies matter.
            "original_max_position_embeddings": 64,
        },
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
        # It speaks until the limit: a logit of 0 is never the highest of 64.
        model.lm_head.weight[tokenizer.token_to_id("<custom_token_2>")] = 0.0
    model.save_pretrained(folder)


@torch.no_grad()
def answer(folder: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Greedy rollouts with the whole sequence's cache."""
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    first = tokenizer.token_to_id(f"<custom_token_{N_MARKS}>")
    outputs = {}
    for name in [name for name in inputs if name.startswith("prompt")]:
        ids, cache, rows = inputs[name].view(1, -1), None, []
        for row in range(int(inputs["n_rows"])):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0, -1]
            if row == 0:
                outputs[name.replace("prompt", "logits")] = logits.clone()
            low = first + row % N_SLOTS * N_CODES
            rows.append(low + int(logits[low : low + N_CODES].argmax()))
            ids = torch.tensor([[rows[-1]]])
        outputs[name.replace("prompt", "rows")] = torch.tensor(rows)
    return outputs


folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
outputs = {}
if inputs:
    outputs = answer(folder, inputs)
else:
    make(folder)
save_file(outputs, folder / "outputs.safetensors")
