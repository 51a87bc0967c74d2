"""Chatterbox's T3 as Turbo has it: a small random file of it, and what it says, greedy.

Of `text<n>`, `tokens<n>`, `speaker<n>` and how many rows of each (`n_frames`), it gives `logits<n>`
of the prompt and `codes<n>`.
"""

import sys
from pathlib import Path

import torch
from audio_stubs import open_packages
from safetensors.torch import load_file, save_file

open_packages()
from chatterbox.models.t3 import t3 as module  # noqa: E402
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS  # noqa: E402
from chatterbox.models.t3.modules.cond_enc import T3Cond  # noqa: E402
from chatterbox.models.t3.modules.t3_config import T3Config  # noqa: E402

N_CODES, HIDDEN = 6561, 128
FILE = "t3_turbo_v1.safetensors"


def make() -> module.T3:
    """T3, every weight drawn."""
    sizes = {"n_embd": HIDDEN, "hidden_size": HIDDEN, "n_head": 2, "n_layer": 2, "n_positions": 900}
    LLAMA_CONFIGS["GPT2_medium"].update(vocab_size=8, **sizes)
    hp = T3Config(text_tokens_dict_size=400)
    hp.llama_config_name = "GPT2_medium"
    hp.speech_tokens_dict_size = N_CODES + 2
    hp.input_pos_emb = None
    hp.speech_cond_prompt_len = 375
    hp.use_perceiver_resampler = hp.emotion_adv = False
    torch.manual_seed(19)
    model = module.T3(hp).eval()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if key.startswith("tfmr."):
                if "ln_" in key:
                    tensor.normal_(std=0.2).add_(1.0 if key.endswith("weight") else 0.0)
                else:
                    tensor.normal_(std=0.5 if "wpe" in key else 0.15)
        model.speech_head.weight.normal_(std=0.2)
        # It speaks until the limit: a logit of 0 is never the highest of thousands.
        model.speech_head.weight[N_CODES:] = model.speech_head.bias[N_CODES:] = 0.0
    return model


@torch.no_grad()
def speak(model: module.T3, inputs: dict, number: str, n_frames: int) -> dict:
    """A greedy rollout, by the reference's own loop."""
    heard = []
    hook = model.speech_head.register_forward_hook(
        lambda layer, given, logits: heard.append(logits[0, -1].clone())
    )
    condition = T3Cond(
        speaker_emb=inputs[f"speaker{number}"].view(1, -1),
        cond_prompt_speech_tokens=inputs[f"tokens{number}"].view(1, -1),
        emotion_adv=torch.zeros(1, 1, 1),
    )
    text = inputs[f"text{number}"].view(1, -1)
    codes = model.inference_turbo(condition, text, max_gen_len=n_frames - 1)
    hook.remove()
    return {f"logits{number}": heard[0], f"codes{number}": codes[0]}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    # The likeliest in place of a draw.
    torch.multinomial = lambda p, num_samples: p.argmax(dim=-1, keepdim=True)
    model = make()
    save_file(model.state_dict(), folder / FILE)
    for name in [name for name in inputs if name.startswith("text")]:
        number = name.removeprefix("text")
        outputs |= speak(model, inputs, number, int(inputs["n_frames"][int(number)]))
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
