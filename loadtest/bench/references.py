"""`transformers` generate on a checkpoint folder, a take for each line of input; its own process.

    python -m loadtest.bench.references orpheus FOLDER

Prints a line when it is ready, then for each line read, which holds a number of steps, what a step
took in each of them, in ms, as JSON. A step is one row of the backbone and all that goes with it:
codes of the depth model, the draw, the library's own work. The detokenizer is left out.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

Generate = Callable[[int], object]
"""Make so many steps after a short prompt."""
Taken = tuple[Any, Generate]
"""The module that runs once for each step, and what runs it."""
PROMPT: Final = list(range(40))


def drawing(model: Any, **settings: float) -> Taken:  # noqa: ANN401 - of a library without types
    """A decoder of `transformers` with its head, drawn from with these settings."""
    ids = torch.tensor([PROMPT])

    def generate(n_steps: int) -> object:
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            min_new_tokens=n_steps,
            max_new_tokens=n_steps,
            pad_token_id=0,
            **settings,
        )

    return model.model, generate


def orpheus(folder: Path) -> Taken:
    """The Llama alone, drawn from as the published model is."""
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM
    model = model.from_pretrained(folder, dtype=torch.float32).eval()
    return drawing(model, temperature=0.6, top_p=0.8, top_k=0, repetition_penalty=1.3)


def csm(folder: Path) -> Taken:
    """Both decoders; a step is a frame."""
    from transformers import CsmForConditionalGeneration

    model: Any = CsmForConditionalGeneration
    model = model.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPT])

    def generate(n_steps: int) -> object:
        return model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.9,
            top_k=50,
            max_new_tokens=n_steps,
            depth_decoder_do_sample=True,
            depth_decoder_temperature=0.9,
            depth_decoder_top_k=50,
        )

    return model.backbone_model, generate


def qwen3_tts(folder: Path) -> Taken:
    """Talker and predictor of `qwen-tts`, whose loop is that of `transformers`."""
    from qwen_stubs import stub_sound_libraries  # type: ignore[import-not-found] # of the tests

    stub_sound_libraries()
    from qwen_tts.core.models.configuration_qwen3_tts import (  # type: ignore[import-not-found]
        Qwen3TTSConfig,
    )
    from qwen_tts.core.models.modeling_qwen3_tts import (  # type: ignore[import-not-found]
        Qwen3TTSForConditionalGeneration,
    )
    from safetensors.torch import load_file

    config = Qwen3TTSConfig(**json.loads((folder / "config.json").read_text()))
    model = Qwen3TTSForConditionalGeneration(config).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))

    def generate(n_steps: int) -> object:
        return model.generate(
            input_ids=[torch.tensor([PROMPT])],
            instruct_ids=[None],
            languages=["english"],
            speakers=["vivian"],
            non_streaming_mode=False,
            max_new_tokens=n_steps,
        )

    return model.talker.model, generate


def cosyvoice2(folder: Path) -> Taken:
    """The Qwen2 alone, with the table and the head of speech tokens."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    held = torch.load(folder / "llm.pt", weights_only=True)
    stem, head = "llm.model.", held["llm_decoder.weight"]
    weights = {key.removeprefix(stem): one for key, one in held.items() if key.startswith(stem)}
    weights |= {"model.embed_tokens.weight": held["speech_embedding.weight"]}
    stated = json.loads((folder / "CosyVoice-BlankEN" / "config.json").read_text())
    config = Qwen2Config(**{**stated, "vocab_size": len(head), "tie_word_embeddings": False})
    model: Any = Qwen2ForCausalLM(config)
    model.eval().load_state_dict({**weights, "lm_head.weight": head})
    return drawing(model, top_p=0.8, top_k=25)


def chatterbox(folder: Path) -> Taken:
    """The Llama alone, with the table and the head of speech tokens; two rows, as guidance has."""
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    held = load_file(folder / "t3_cfg.safetensors")
    weights = {
        key.replace("tfmr.", "model."): one for key, one in held.items() if key.startswith("tfmr.")
    }
    table, head = held["speech_emb.weight"], held["speech_head.weight"]
    n_layers = sum(key.endswith("q_proj.weight") for key in weights)
    config = LlamaConfig(
        vocab_size=len(head),
        hidden_size=head.shape[1],
        intermediate_size=len(weights["model.layers.0.mlp.up_proj.weight"]),
        num_hidden_layers=n_layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    model: Any = LlamaForCausalLM(config)
    model.eval().load_state_dict(
        {**weights, "model.embed_tokens.weight": table, "lm_head.weight": head}
    )
    ids = torch.tensor([PROMPT, PROMPT])

    def generate(n_steps: int) -> object:
        return model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=0.8,
            min_p=0.05,
            repetition_penalty=1.2,
            min_new_tokens=n_steps,
            max_new_tokens=n_steps,
            pad_token_id=0,
        )

    return model.model, generate


def step_audio2(folder: Path) -> Taken:
    """The Qwen2 alone, drawn from as the published model is."""
    from safetensors.torch import load_file
    from transformers import Qwen2Config, Qwen2ForCausalLM

    held = load_file(folder / "model.safetensors")
    weights = {key: one for key, one in held.items() if key.startswith(("model.", "lm_head."))}
    stated = json.loads((folder / "config.json").read_text())["text_config"]
    model: Any = Qwen2ForCausalLM(Qwen2Config(**stated))
    model.eval().load_state_dict(weights)
    return drawing(model, temperature=0.7, top_p=0.9, top_k=0, repetition_penalty=1.05)


def glm4_voice(folder: Path) -> Taken:
    """The GLM alone, drawn from as the published model is."""
    from safetensors.torch import load_file
    from transformers import GlmConfig, GlmForCausalLM

    stated = json.loads((folder / "config.json").read_text())
    n_kv, head_dim = stated["multi_query_group_num"], stated["kv_channels"]
    sizes = [stated["num_attention_heads"] * head_dim, n_kv * head_dim, n_kv * head_dim]
    held = load_file(folder / "model.safetensors")
    weights = {
        "model.embed_tokens.weight": held["transformer.embedding.word_embeddings.weight"],
        "model.norm.weight": held["transformer.encoder.final_layernorm.weight"],
        "lm_head.weight": held["transformer.output_layer.weight"],
    }
    for idx in range(stated["num_layers"]):
        theirs, own = f"transformer.encoder.layers.{idx}.", f"model.layers.{idx}."
        for kind in ("weight", "bias"):
            joined = held[f"{theirs}self_attention.query_key_value.{kind}"]
            for name, part in zip("qkv", torch.split(joined, sizes), strict=True):
                weights[f"{own}self_attn.{name}_proj.{kind}"] = part
        for name, their_name in (
            ("self_attn.o_proj", "self_attention.dense"),
            ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
            ("mlp.down_proj", "mlp.dense_4h_to_h"),
            ("input_layernorm", "input_layernorm"),
            ("post_attention_layernorm", "post_attention_layernorm"),
        ):
            weights[f"{own}{name}.weight"] = held[f"{theirs}{their_name}.weight"]
    config = GlmConfig(
        vocab_size=stated["padded_vocab_size"],
        hidden_size=stated["hidden_size"],
        intermediate_size=stated["ffn_hidden_size"],
        num_hidden_layers=stated["num_layers"],
        num_attention_heads=stated["num_attention_heads"],
        num_key_value_heads=n_kv,
        head_dim=head_dim,
        rms_norm_eps=stated["layernorm_epsilon"],
        tie_word_embeddings=False,
    )
    model: Any = GlmForCausalLM(config)
    model.eval().load_state_dict(weights)
    return drawing(model, temperature=0.2, top_p=0.8, top_k=0)


REFERENCES: Final[dict[str, Callable[[Path], Taken]]] = {
    "orpheus": orpheus,
    "csm": csm,
    "qwen3-tts": qwen3_tts,
    "cosyvoice2": cosyvoice2,
    "step-audio2": step_audio2,
    "glm4-voice": glm4_voice,
    "chatterbox": chatterbox,
}


@torch.inference_mode()
def steps_ms(taken: Taken, n_steps: int) -> list[float]:
    """Milliseconds of each step but the first, which belongs to the prompt."""
    module, generate = taken
    began_s: list[float] = []
    hook = module.register_forward_pre_hook(lambda *_: began_s.append(time.perf_counter()))
    try:
        generate(n_steps + 2)
    finally:
        hook.remove()
    return [1000 * (after - before) for before, after in pairwise(began_s[1:])]


def main(family: str, folder: Path) -> None:
    """Serve takes until the input ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    taken = REFERENCES[family](folder)
    steps_ms(taken, 1)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(steps_ms(taken, int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
