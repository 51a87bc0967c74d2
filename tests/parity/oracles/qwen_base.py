"""`qwen-tts` 0.1.1: a small random Base checkpoint, speaking with a recording's voice.

Without inputs it makes the checkpoint. With `pcm<n>`, `prompt<n>` (ids of the text in its
template), `n_frames<n>`, `language<n>` and perhaps `words<n>` (of the recording, in its template)
it gives `vector<n>`, `codes<n>`, the prompt's `rows<n>`, the first `logits<n>` and `frames<n>`, the
likeliest codes.
"""

import json
import sys
from pathlib import Path

import torch
from qwen_codec import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
from qwen_lm import build, make, overhear
from qwen_tts.core.models import modeling_qwen3_tts as library
from safetensors.torch import load_file, save_file
from transformers.audio_utils import mel_filter_bank

SPEAKER = {
    "enc_dim": 48,
    "sample_rate": 24000,
    "enc_channels": [16, 16, 16, 32],
    "enc_kernel_sizes": [5, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 1],
    "enc_attention_channels": 8,
    "enc_res2net_scale": 4,
    "enc_se_channels": 8,
}


def filters(sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float):
    """In place of librosa, which is not here; by another library of the same filters."""
    scale = {"norm": "slaney", "mel_scale": "slaney"}
    return mel_filter_bank(n_fft // 2 + 1, n_mels, fmin, fmax, sr, **scale).T


def listener(folder: Path) -> Qwen3TTSTokenizerV2Model:
    """The codec, of which the encoder is asked."""
    config = Qwen3TTSTokenizerV2Config.from_json_file(folder / "config.json")
    model = Qwen3TTSTokenizerV2Model(config).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


@torch.no_grad()
def answer(folder: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Greedy takes by the library's own loop."""
    library.librosa_mel_fn = filters
    config = json.loads((folder / "config.json").read_text())
    model = build(config)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    codec = listener(folder / "speech_tokenizer")
    rows, logits = overhear(model)
    languages = ["auto", *config["talker_config"]["codec_language_id"]]
    outputs = {}
    for name in [name for name in inputs if name.startswith("prompt")]:
        number = name.removeprefix("prompt")
        pcm, words = inputs[f"pcm{number}"], inputs.get(f"words{number}")
        n_frames = int(inputs[f"n_frames{number}"])
        codes = codec.encode(
            pcm.view(1, -1), torch.ones(1, len(pcm), dtype=torch.int64)
        ).audio_codes[0]
        vector = model.extract_speaker_embedding(pcm.numpy(), 24000)
        rows.clear()
        logits.clear()
        frames, _ = model.generate(
            input_ids=[inputs[name].view(1, -1)],
            ref_ids=[None if words is None else words.view(1, -1)],
            voice_clone_prompt={
                "ref_code": [None if words is None else codes],
                "ref_spk_embedding": [vector],
                "x_vector_only_mode": [words is None],
                "icl_mode": [words is not None],
            },
            languages=[languages[int(inputs[f"language{number}"])]],
            non_streaming_mode=False,
            max_new_tokens=n_frames + 1,
            do_sample=False,
            subtalker_dosample=False,
            repetition_penalty=1.0,
        )
        outputs[f"vector{number}"] = vector
        outputs[f"codes{number}"] = codes.clone()
        outputs[f"rows{number}"] = rows[0][0].clone()
        outputs[f"logits{number}"] = logits[0].clone()
        outputs[f"frames{number}"] = frames[0][:n_frames].clone()
    return outputs


folder = Path(sys.argv[1])
torch.set_num_threads(1)
inputs = load_file(folder / "inputs.safetensors")
outputs = {}
if inputs:
    outputs = answer(folder, inputs)
else:
    talker = {"spk_id": {}, "spk_is_dialect": {}}
    changes = {"tts_model_type": "base", "speaker_encoder_config": SPEAKER, "talker_config": talker}
    make(folder, changes)
save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
