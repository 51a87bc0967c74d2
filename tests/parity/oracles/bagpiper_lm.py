"""ESPnet 202611: a small random Bagpiper checkpoint as it is published, or what it answers.

Without inputs it makes the checkpoint. With `text<n>` (bytes) it gives the rows of the prompt,
`prompt<n>`, what each column of the row after it may hold, `logits<n>`, and the rows of each
message that it answers with, `rows<n>_<k>`. Greedy. `order<n>` names the kinds of the messages by
their marks (none: as the model likes), `cfg<n>` how they are guided, `least<n>` and `most<n>` rows
of speech, `messages<n>` how many messages are asked for.
"""

import contextlib
import json
import sys
from pathlib import Path

from espnet_stubs import stub_espnet_libraries

stub_espnet_libraries()

import torch  # noqa: E402
import yaml  # noqa: E402
from byte_tokenizer import byte_tokenizer  # noqa: E402
from espnet2.speechlm.model.speechlm.speechlm_job import SpeechLMJobTemplate  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from xcodec_decode import make as make_xcodec  # noqa: E402

BACKBONE, CODEC = "Qwen/Qwen3-tiny-Base", "hf-audio/xcodec-tiny"
MARKS = {7: "text", 8: "audio"}
N_TEXT, N_MARKS, N_PRINTABLE = 272, 256, 94
ENDING = N_MARKS + 5
"""Where this id of text would be likely, the end of the message is likelier."""
SPEECH = {"temperature": 0.0, "topk": 20, "cfg": 3, "max_step": 600, "min_step": 600}
TEXT = {"temperature": 0.0, "topk": 20, "cfg": 1, "max_step": 24, "min_step": 3}
TRAINING = {
    "job_type": "speechlm",
    "multimodal_io": {
        "text": {"tokenizer_name": BACKBONE},
        "discrete_audio": {
            "codec_choice": "Xcodec",
            "codec_hf_model_tag": CODEC,
            "ssl_choice": None,
            "ssl_hf_model_tag": None,
            "delay_interleave": True,
            "stream_weights": [0.125] * 8,
        },
        "continuous_audio": {
            "encoder_choice": "huggingface",
            "encoder_hf_model_tag": "Qwen/Qwen3-Omni-30B-A3B-Instruct",
            "attn_implementation": "flash_attention_3",
            "dtype": "bfloat16",
        },
    },
    "model": {
        "model_choice": "parallel",
        "model_hf_tag": BACKBONE,
        "model_conf": {"attn_implementation": "flash_attention_3", "dtype": "bfloat16"},
    },
    "preprocessor": {
        "audio_input": "continuous_audio",
        "audio_output": "discrete_audio",
        "loss_region": "assistant",
    },
    "data_loading": {"batchfy_method": "pack", "batch_size": 64},
}


def make(folder: Path) -> None:
    """The checkpoint's files, and beside them those of the repositories that it names."""
    torch.manual_seed(23)
    backbone = folder / Path(BACKBONE).name
    config = Qwen3Config(
        vocab_size=N_TEXT,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )
    Qwen3ForCausalLM(config).save_pretrained(backbone)
    byte_tokenizer(["<|endoftext|>"]).save(str(backbone / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (backbone / "tokenizer_config.json").write_text(json.dumps(kind))
    make_xcodec(folder / Path(CODEC).name, is_normed=False)
    (folder / "train_bagpiper.yaml").write_text(yaml.safe_dump(TRAINING, sort_keys=False))
    decoding = {"dtype": "bfloat16", "enforce_modality": ["text", "audio"]}
    decoding |= {"text": TEXT, "audio": SPEECH}
    (folder / "inference_audio.yaml").write_text(yaml.safe_dump(decoding))

    model = job(folder).build_model()
    draw(model)
    weights = model.state_dict()
    weights["multimodal_io_dict.continuous_audio.model.audio_tower.conv1.weight"] = torch.randn(2)
    weights["adaptor.continuous_audio.weight"] = torch.randn(48, 16)
    torch.save({"module": weights}, folder / "model.pt")


@torch.no_grad()
def draw(model: torch.nn.Module) -> None:
    """Weights that count, all but those of the codec."""
    for name, parameter in model.named_parameters():
        if name.startswith("multimodal_io_dict."):
            continue
        if name.endswith("norm.weight"):
            parameter.uniform_(0.5, 1.5)
        else:
            parameter.normal_(std=0.2)
    head = model.lm_head.weight
    # Printable text, no other kind of message than these two, and an end now and then.
    head[N_MARKS + N_PRINTABLE : N_MARKS + N_TEXT] = 0.0
    head[9:12] = 0.0
    head[8] = -head[7]
    head[2] = 0.0
    head[3] = 3 * head[ENDING]


def job(folder: Path) -> SpeechLMJobTemplate:
    """The reference, which takes folders where a checkpoint names repositories."""
    config = yaml.safe_load((folder / "train_bagpiper.yaml").read_text())
    # Its encoder of heard audio cannot be made small.
    del config["multimodal_io"]["continuous_audio"]
    backbone = str(folder / Path(BACKBONE).name)
    config["multimodal_io"]["text"]["tokenizer_name"] = backbone
    config["multimodal_io"]["discrete_audio"]["codec_hf_model_tag"] = str(folder / Path(CODEC).name)
    config["model"]["model_hf_tag"] = backbone
    config["model"]["model_conf"] = {"attn_implementation": "sdpa", "dtype": torch.float32}
    return SpeechLMJobTemplate(config, is_train=False)


class Recorder:
    """Stands in for the loop over the rows of a message, and keeps what it gave.

    Raises:
        StopIteration: enough messages came.
    """

    def __init__(self, model: torch.nn.Module, n_most: int) -> None:
        self.loop = type(model).inference_segment
        self.model = model
        self.n_most = n_most
        self.messages: list[torch.Tensor] = []

    def __call__(self, **kwargs: object) -> object:
        if len(self.messages) == self.n_most:
            raise StopIteration
        found = self.loop(self.model, **kwargs)
        self.messages.append(found[0][0])
        return found


@torch.no_grad()
def answer(folder: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Everything that is asked, by the reference's own loops."""
    task = job(folder)
    model = task.build_model().eval()
    held = torch.load(folder / "model.pt", weights_only=True)["module"]
    own = {key: tensor for key, tensor in held.items() if "continuous_audio" not in key}
    model.load_state_dict(own, strict=True)
    model.prepare_inference()
    preprocessor = task.build_preprocessor()
    system = bytes(inputs["system"].tolist()).decode()
    outputs = {}
    for name in [name for name in inputs if name.startswith("text")]:
        number = name.removeprefix("text")
        text = bytes(inputs[name].tolist()).decode()
        dialogue = [["system", "text", system], ["user", "text", text]]
        made = preprocessor.preprocessing(("dialogue", "-", "-"), {"dialogue": dialogue})
        rows = torch.from_numpy(made["sequence"])[None]
        _, cache = model._step(input_embeds=model._embed(rows.clone(), {}))
        logits, _ = model._step(input_ids=model.assistant_token, past_key_values=cache)
        outputs[f"prompt{number}"] = rows[0]
        outputs[f"logits{number}"] = logits[0, 0].clone()
        model.inference_segment = Recorder(model, int(inputs[f"messages{number}"]))
        speech = {
            **SPEECH,
            "cfg": int(inputs[f"cfg{number}"]),
            "min_step": int(inputs[f"least{number}"]),
            "max_step": int(inputs[f"most{number}"]),
        }
        order = [MARKS[int(mark)] for mark in inputs[f"order{number}"] if mark]
        decoding = {"enforce_modality": order, "text": TEXT, "audio": speech}
        with contextlib.suppress(StopIteration):
            model.inference(decoding, seqs=rows.clone())
        for idx, message in enumerate(model.inference_segment.messages):
            outputs[f"rows{number}_{idx}"] = message.clone()
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
