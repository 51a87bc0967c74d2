"""`qwen-tts` 0.1.1: a small random Qwen3-TTS checkpoint, or what it makes of texts.

Without inputs it makes the checkpoint. With `prompt<n>` (ids of the text in its template),
`language<n>` and perhaps `voice<n>` (their places in the config), `instructions<n>` and `whole<n>`
(the text stands before the speech) it gives the prompt's `rows<n>`, the first `logits<n>` and
`frames<n>`, the likeliest codes, one frame after another.
"""

import json
import sys
from pathlib import Path

import torch
from byte_tokenizer import byte_tokenizer
from qwen_codec import CONFIG as CODEC
from qwen_codec import make as make_codec
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
from safetensors.torch import load_file, save_file

N_CODES = CODEC["decoder_config"]["codebook_size"]
N_CODEBOOKS = CODEC["decoder_config"]["num_quantizers"]
MARKS = ["<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_bos>", "<tts_eos>"]
ROPE = {"type": "default", "rope_type": "default", "interleaved": True, "mrope_section": [4, 2, 2]}


def configuration(n_text: int, marks: list[int]) -> dict:
    """Sizes that differ wherever they can."""
    predictor = {
        "vocab_size": N_CODES,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "max_position_embeddings": 512,
        "num_code_groups": N_CODEBOOKS,
    }
    talker = {
        "vocab_size": N_CODES + 1024,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "rope_scaling": ROPE,
        "max_position_embeddings": 4096,
        "text_hidden_size": 40,
        "text_vocab_size": n_text,
        "num_code_groups": N_CODEBOOKS,
        "codec_pad_id": N_CODES + 100,
        "codec_bos_id": N_CODES + 101,
        "codec_eos_token_id": N_CODES + 102,
        "codec_think_id": N_CODES + 106,
        "codec_nothink_id": N_CODES + 107,
        "codec_think_bos_id": N_CODES + 108,
        "codec_think_eos_id": N_CODES + 109,
        "spk_id": {"vivian": N_CODES + 200, "dylan": N_CODES + 201, "ryan": N_CODES + 202},
        "spk_is_dialect": {"vivian": False, "dylan": "beijing_dialect", "ryan": False},
        "codec_language_id": {
            "chinese": N_CODES + 10,
            "english": N_CODES + 11,
            "beijing_dialect": N_CODES + 12,
        },
        "code_predictor_config": predictor,
    }
    return {
        "model_type": "qwen3_tts",
        "tts_model_type": "custom_voice",
        "tts_model_size": "tiny",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_pad_token_id": marks[2],
        "tts_bos_token_id": marks[3],
        "tts_eos_token_id": marks[4],
        "talker_config": talker,
        "speaker_encoder_config": {},
    }


def make(folder: Path, changes: dict | None = None) -> None:
    """A checkpoint in the layout of the hub, its config with `changes`; no weight is trained."""
    tokenizer = byte_tokenizer(MARKS)
    # The template's word is one token in the published vocabulary, and the reference counts on it.
    tokenizer.add_tokens(["assistant"])
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = [tokenizer.token_to_id(mark) for mark in MARKS]
    config = configuration(tokenizer.get_vocab_size(), marks)
    for name, value in (changes or {}).items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(7)
    model = build(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif parameter.dim() > 1:
                parameter.normal_(std=0.2)
            else:
                parameter.normal_(std=0.1)
        # It speaks until the limit: a logit of 0 is never the highest of 64.
        model.talker.codec_head.weight[config["talker_config"]["codec_eos_token_id"]] = 0.0
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    make_codec(folder / "speech_tokenizer")


def build(config: dict) -> Qwen3TTSForConditionalGeneration:
    """The model, without weights worth anything."""
    return Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config)).eval()


def overhear(
    model: Qwen3TTSForConditionalGeneration,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Lists that will hold the rows of each prompt, and the logits of the last row of each step."""
    rows, logits = [], []
    speak = model.talker.generate

    def overheard(**arguments: object) -> object:
        rows.append(arguments["inputs_embeds"])
        return speak(**arguments)

    model.talker.generate = overheard
    model.talker.codec_head.register_forward_hook(lambda *told: logits.append(told[-1][0, -1]))
    return rows, logits


@torch.no_grad()
def answer(folder: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Greedy takes, text fed a row at a time, by the library's own loop."""
    config = json.loads((folder / "config.json").read_text())
    model = build(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    voices = list(config["talker_config"]["spk_id"])
    languages = ["auto", *config["talker_config"]["codec_language_id"]]
    rows, logits = overhear(model)
    outputs = {}
    for name in [name for name in inputs if name.startswith("prompt")]:
        number = name.removeprefix("prompt")
        instructions, voice = (inputs.get(f"{part}{number}") for part in ("instructions", "voice"))
        rows.clear()
        logits.clear()
        codes, _ = model.generate(
            input_ids=[inputs[name].view(1, -1)],
            instruct_ids=[None if instructions is None else instructions.view(1, -1)],
            languages=[languages[int(inputs[f"language{number}"])]],
            speakers=[None if voice is None else voices[int(voice)]],
            non_streaming_mode=f"whole{number}" in inputs,
            max_new_tokens=int(inputs["n_frames"]) + 1,
            do_sample=False,
            subtalker_dosample=False,
            repetition_penalty=1.0,
        )
        outputs[f"rows{number}"] = rows[0][0].clone()
        outputs[f"logits{number}"] = logits[0].clone()
        outputs[f"frames{number}"] = codes[0][: int(inputs["n_frames"])].clone()
    return outputs


def main(folder: Path, changes: dict | None = None) -> None:
    """The checkpoint, its config with `changes`, or what it makes of the inputs."""
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if inputs:
        outputs = answer(folder, inputs)
    else:
        make(folder, changes)
    save_file(outputs, folder / "outputs.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
