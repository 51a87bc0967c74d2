"""`transformers` CSM: a small random checkpoint, or what it makes of prompts.

Without inputs it makes the checkpoint. With `prompt<n>` (ids of text, audio and audio-end marks)
and `pcm<n>` (reference audio of that prompt, if it has marks) it gives `logits<n>` of the prompt's
last row, and `frames<n>`, the likeliest codes, one frame after another.
"""

import json
import sys
from pathlib import Path

import torch
from byte_tokenizer import byte_tokenizer
from mimi_codec import CONFIG as MIMI
from mimi_codec import randomized
from safetensors.torch import load_file, save_file
from transformers import CsmConfig, CsmForConditionalGeneration

N_CODES = MIMI["codebook_size"]
N_CODEBOOKS = MIMI["num_quantizers"]
ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0}


def make(folder: Path) -> None:
    """A checkpoint in the layout of the hub; no weight of it is trained."""
    marks = ["<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>"]
    tokenizer = byte_tokenizer(marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    depth = {
        "num_codebooks": N_CODEBOOKS,
        "backbone_hidden_size": 48,
        "vocab_size": N_CODES + 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": N_CODEBOOKS + 1,
        "rope_parameters": {
            **ROPE,
            "low_freq_factor": 0.01,
            "high_freq_factor": 0.1,
            "original_max_position_embeddings": 4,
        },
    }
    config = CsmConfig(
        num_codebooks=N_CODEBOOKS,
        vocab_size=N_CODES + 3,
        codebook_pad_token_id=N_CODES + 2,
        codebook_eos_token_id=0,
        text_vocab_size=tokenizer.get_vocab_size(),
        audio_token_id=tokenizer.token_to_id(marks[2]),
        audio_eos_token_id=tokenizer.token_to_id(marks[3]),
        bos_token_id=tokenizer.token_to_id(marks[0]),
        pad_token_id=tokenizer.token_to_id(marks[2]),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        rope_parameters={
            **ROPE,
            "low_freq_factor": 0.125,
            "high_freq_factor": 0.5,
            "original_max_position_embeddings": 128,
        },
        depth_decoder_config=depth,
        codec_config={**MIMI, "model_type": "mimi"},
    )
    torch.manual_seed(3)
    model = CsmForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.2)
    randomized(model.codec_model)
    model.save_pretrained(folder)
    stated = json.loads((folder / "config.json").read_text())
    stated["codec_config"] = {**MIMI, "model_type": "mimi"}
    (folder / "config.json").write_text(json.dumps(stated))


def likeliest(logits: torch.Tensor) -> int:
    """The best code; the marks above the codec's codes do not count."""
    return int(logits[:N_CODES].argmax())


@torch.no_grad()
def answer(folder: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Greedy rollouts, each frame's codes from the depth model run anew for every code."""
    config = json.loads((folder / "config.json").read_text())
    config["codec_config"].pop("model_type")
    model = CsmForConditionalGeneration.from_pretrained(folder).eval()
    outputs = {}
    for name in [name for name in inputs if name.startswith("prompt")]:
        number = name.removeprefix("prompt")
        arguments = {"input_ids": inputs[name].view(1, -1)}
        if f"pcm{number}" in inputs:
            pcm = inputs[f"pcm{number}"]
            arguments["input_values"] = pcm.view(1, 1, -1)
            arguments["input_values_cutoffs"] = torch.tensor([[len(pcm)]])
        cache, frames = None, []
        for row in range(int(inputs["n_frames"])):
            out = model(
                **arguments, past_key_values=cache, use_cache=True, output_hidden_states=True
            )
            cache, logits = out.past_key_values, out.logits[0, -1]
            if row == 0:
                outputs[f"logits{number}"] = logits.clone()
            hidden = out.hidden_states[-1][:, -1]
            codes = [likeliest(logits)]
            while len(codes) < N_CODEBOOKS:
                ids = torch.tensor([[0, *codes]])
                deep = model.depth_decoder(input_ids=ids, backbone_last_hidden_state=hidden.clone())
                codes.append(likeliest(deep.logits[0, -1]))
            frames.append(codes)
            arguments = {"input_ids": torch.tensor([[codes]])}
        outputs[f"frames{number}"] = torch.tensor(frames)
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
