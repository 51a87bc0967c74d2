"""Chatterbox's T3: a small random file of it, and what it says of given conditions.

The decoder is made small; the perceiver fixes the width of rows at 1024. Of `text<n>` (ids with
their marks), `tokens<n>`, `speaker<n>`, `feeling<n>` and how many rows of each (`n_frames`), it
gives `prompt<n>` (rows of both of a pair), `logits<n>` (of the last, of both) and `codes<n>`,
greedy.
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

N_CODES = 6561
WEIGHT, PENALTY = 0.5, 1.2
FILE = "t3_cfg.safetensors"


def make() -> module.T3:
    """T3, every weight drawn."""
    LLAMA_CONFIGS["Llama_520M"].update(
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=96
    )
    hp = T3Config(text_tokens_dict_size=400)
    hp.max_text_tokens, hp.max_speech_tokens = 200, 300
    hp.speech_tokens_dict_size = N_CODES + 5
    torch.manual_seed(17)
    model = module.T3(hp).eval()
    with torch.no_grad():
        for key, tensor in model.tfmr.named_parameters():
            if tensor.dim() > 1:
                tensor.normal_(std=0.08)
            elif key.endswith("norm.weight"):
                tensor.uniform_(0.5, 1.5)
        model.speech_pos_emb.emb.weight.normal_(std=0.5)
        model.text_pos_emb.emb.weight.normal_(std=0.5)
        model.speech_head.weight.normal_(std=0.05)
        # It speaks until the limit: a logit of 0 is never the highest of thousands.
        model.speech_head.weight[N_CODES:] = 0.0
    return model


@torch.no_grad()
def speak(model: module.T3, inputs: dict, number: str, n_frames: int) -> dict:
    """A greedy rollout, by the reference's own loop."""
    heard, prompts = [], []

    def listen(layer: object, given: tuple, logits: torch.Tensor) -> None:
        heard.append(logits[:, -1].clone())

    def look(layer: object, given: tuple, kwargs: dict) -> None:
        prompts.append(kwargs["inputs_embeds"].clone())

    hooks = [
        model.speech_head.register_forward_hook(listen),
        model.tfmr.register_forward_pre_hook(look, with_kwargs=True),
    ]
    text = inputs[f"text{number}"].view(1, -1)
    condition = T3Cond(
        speaker_emb=inputs[f"speaker{number}"].view(1, -1),
        cond_prompt_speech_tokens=inputs[f"tokens{number}"].view(1, -1),
        emotion_adv=inputs[f"feeling{number}"].view(1, 1, 1),
    )
    codes = model.inference(
        t3_cond=condition,
        text_tokens=torch.cat([text, text]),
        max_new_tokens=n_frames,
        cfg_weight=WEIGHT,
        repetition_penalty=PENALTY,
    )
    for hook in hooks:
        hook.remove()
    return {
        f"prompt{number}": prompts[0],
        f"logits{number}": heard[0],
        f"codes{number}": codes[0],
    }


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
