"""A reference of OpusLM composed here: `transformers` OLMo 2 or Llama, the columns written out.

ESPnet's class is in none of its releases. The backbone is the library's; the summed embedding, the
shifted head, delays, masks and ends are below. With `is_dialogue` alone it makes a small random
checkpoint in ESPnet's layout: OLMo 2 that speaks, or Llama that answers. With `prompt<n>` (rows) it
gives `logits<n>` of the last row, all ids for each column, and, greedy, `text<n>` and `frames<n>`.
Inputs `text<n>` and `end<n>` are the rows after which text and speech are made to end.
"""

import sys
from pathlib import Path

import torch
import yaml
from byte_tokenizer import byte_tokenizer
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, Olmo2Config, Olmo2Model

N_MARKS, N_UNITS, N_CODES, N_BOOKS, N_OTHERS = 256, 60, 64, 8, 5
N_COLUMNS = 1 + N_BOOKS
N_VOICE_ROWS = 40
HIDDEN, INNER, N_LAYERS, N_HEADS = 48, 96, 3, 4
PAD, END, USER, ASSISTANT, SPEECH, TEXT = 0, 5, 9, 10, 34, 35
MARKS = {
    PAD: "<pad>",
    1: "<unk>",
    END: "<sos/eos>",
    8: "<system_prompt>",
    USER: "<user_input>",
    ASSISTANT: "<assistant_output>",
    SPEECH: "<codec_ssl_start/end>",
    TEXT: "<text_bpe_start/end>",
    37: "<spk_start/end>",
    81: "<codec_ssl_tts_task>",
    82: "<codec_ssl_plain_tts_task>",
    88: "<text_dialogue_task>",
    89: "<audio_dialogue_task>",
}
LEAST_FRAMES, LEAST_TEXT = 3, 1


def tokens(words: list[str]) -> tuple[list[str], dict[str, list[int]]]:
    """Names of all ids, and where each kind starts and ends."""
    names = [MARKS.get(idx, f"<unused_token_{idx}>") for idx in range(N_MARKS)]
    kinds = {
        "ssl": [f"<ssl_code{n}>" for n in range(N_UNITS)],
        "codec": [f"<codec_layer{k}_code{n}>" for k in range(N_BOOKS) for n in range(N_CODES)],
        "text_bpe": words,
        "g2p": [f"g2p_{n}" for n in range(N_OTHERS)],
    }
    bias = {"special_token": [0, N_MARKS]}
    for kind, its in kinds.items():
        bias[kind] = [len(names), len(names) + len(its)]
        names += its
    return names, bias


def backbone_config(*, is_dialogue: bool) -> LlamaConfig | Olmo2Config:
    """A tiny backbone of either kind."""
    kind = LlamaConfig if is_dialogue else Olmo2Config
    return kind(
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
        max_position_embeddings=512,
        rms_norm_eps=1e-5 if is_dialogue else 1e-6,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 130000.0 if is_dialogue else 500000.0,
        },
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def make(folder: Path, *, is_dialogue: bool) -> None:
    """A checkpoint as ESPnet saves it, with what lies beside it, every weight drawn."""
    tokenizer = byte_tokenizer([])
    for part in ("tokenizer", "backbone"):
        (folder / part).mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    words = [tokenizer.id_to_token(idx) for idx in range(tokenizer.get_vocab_size())]
    names, bias = tokens(words)
    config = {
        "model": "dpo" if is_dialogue else "espnet",
        "corelm": "ar_delay",
        "corelm_conf": {"share_emb": False},
        "transformer": "huggingface",
        "transformer_conf": {"hf_model_tag": "a/backbone", "n_ctx": 2048},
        "subword_choice": "huggingface",
        "subword_model": "a/tokenizer",
        "codec_token_per_frame": N_COLUMNS,
        "codec_token_in_use": N_COLUMNS,
        "speaker_prompt_length": N_VOICE_ROWS,
        "token_list": names,
        "token_bias": bias,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    stated = backbone_config(is_dialogue=is_dialogue)
    stated.save_pretrained(folder / "backbone")
    torch.manual_seed(21)
    model = (LlamaModel if is_dialogue else Olmo2Model)(stated)
    weights = {"corelm.head_emb.weight": 0.5 * torch.randn(12, HIDDEN)}
    for key, tensor in model.state_dict().items():
        if key == "embed_tokens.weight":
            continue
        shape = tensor.shape
        drawn = 0.5 + torch.rand(shape) if tensor.dim() == 1 else 0.2 * torch.randn(shape)
        weights[f"corelm.decoders.model.{key}"] = drawn
    # Not 0 for id 0 and column 0, as training leaves them: what is not added would not be seen.
    weights["corelm.emb.weight"] = 0.5 * torch.randn(len(names), HIDDEN)
    weights["corelm.lm_head.weight"] = 0.2 * torch.randn(len(names), HIDDEN)
    # It goes on until it is ended: a logit of 0 is never the highest of sixty.
    weights["corelm.lm_head.weight"][END] = 0.0
    # Nor are bytes of characters that take several, which come to nothing by themselves.
    for idx, word in enumerate(words):
        if not word.isascii():
            weights["corelm.lm_head.weight"][bias["text_bpe"][0] + idx] = 0.0
    if is_dialogue:
        weights["criterion.reference.weight"] = torch.ones(2)
        torch.save({"module": weights}, folder / "2epoch.pth")
    else:
        torch.save(weights, folder / "model.pth")


class Reference:
    """One checkpoint, one sequence at a time."""

    def __init__(self, folder: Path) -> None:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        self.bias = config["token_bias"]
        is_dialogue = config["model"] == "dpo"
        path = folder / ("2epoch.pth" if is_dialogue else "model.pth")
        held = torch.load(path, weights_only=True)
        weights = held.get("module", held)
        kind = LlamaModel if is_dialogue else Olmo2Model
        self.model = kind(kind.config_class.from_pretrained(folder / "backbone")).eval()
        prefix = "corelm.decoders.model."
        own = {k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)}
        self.model.load_state_dict({"embed_tokens.weight": torch.zeros(256, HIDDEN), **own})
        self.table = weights["corelm.emb.weight"]
        self.head = weights["corelm.lm_head.weight"]
        self.shifts = weights["corelm.head_emb.weight"][:N_COLUMNS]
        self.cache = None

    def feed(self, rows: Tensor) -> Tensor:
        """Logits `(9, V)` behind `rows` (T, 9)."""
        embeds = self.table[rows].sum(dim=1).unsqueeze(0)
        out = self.model(inputs_embeds=embeds, past_key_values=self.cache, use_cache=True)
        self.cache = out.past_key_values
        return (out.last_hidden_state[0, -1] + self.shifts) @ self.head.T

    def best(self, logits: Tensor, spans: list[tuple[int, int]], row: int, least: int) -> list[int]:
        """The likeliest of each column within its span; the end as well in the first."""
        masked = torch.full_like(logits, -1e20)
        for column, (low, high) in enumerate(spans):
            masked[column, low:high] = logits[column, low:high]
        if row >= least:
            masked[0, END] = logits[0, END]
        return masked.argmax(dim=1).tolist()

    @torch.no_grad()
    def go_on(self, prompt: Tensor, n_text: int, end: int) -> tuple[Tensor, list[int], list]:
        """First logits, ids of text, and frames, of which there are `end`."""
        self.cache = None
        first = logits = self.feed(prompt)
        text = []
        if n_text:
            text, logits = self.write(logits, n_text)
        return first, text, self.speak(logits, end)

    def write(self, logits: Tensor, n_text: int) -> tuple[list[int], Tensor]:
        """Text, its end, blanks, and the marks of speech; the logits behind them."""
        text = []
        for row in range(n_text):
            idx = self.best(logits, [tuple(self.bias["text_bpe"])], row, LEAST_TEXT)[0]
            assert idx != END
            text.append(idx)
            logits = self.feed(alone(idx))
        for idx in [END, *[PAD] * N_BOOKS, ASSISTANT, SPEECH]:
            logits = self.feed(alone(idx))
        return text, logits

    def speak(self, logits: Tensor, end: int) -> list[list[int]]:
        """Frames, by rows in which column n is n frames back."""
        low = self.bias["codec"][0]
        spans = [tuple(self.bias["ssl"])]
        spans += [(low + N_CODES * k, low + N_CODES * (k + 1)) for k in range(N_BOOKS)]
        rows = []
        for row in range(end + N_BOOKS):
            ids = self.best(logits, spans, row, LEAST_FRAMES)
            assert row >= end or ids[0] != END
            if row == end:
                ids[0] = END
            ids = [
                idx if n <= row and (row - n < end or (n == 0 and row == end)) else PAD
                for n, idx in enumerate(ids)
            ]
            rows.append(ids)
            logits = self.feed(torch.tensor([ids]))
        return [
            [rows[f + k + 1][k + 1] - low - N_CODES * k for k in range(N_BOOKS)] for f in range(end)
        ]


def alone(idx: int) -> Tensor:
    """A row with one id in its first column."""
    row = torch.full((1, N_COLUMNS), PAD)
    row[0, 0] = idx
    return row


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    inputs = load_file(folder / "inputs.safetensors")
    outputs = {}
    if "is_dialogue" in inputs:
        make(folder, is_dialogue=bool(inputs["is_dialogue"]))
    else:
        reference = Reference(folder)
        for name in [name for name in inputs if name.startswith("prompt")]:
            number = name.removeprefix("prompt")
            n_text = int(inputs.get(f"text{number}", torch.tensor(0)))
            end = int(inputs[f"end{number}"])
            logits, text, frames = reference.go_on(inputs[name], n_text, end)
            outputs[f"logits{number}"] = logits
            outputs[f"text{number}"] = torch.tensor(text, dtype=torch.int64)
            outputs[f"frames{number}"] = torch.tensor(frames)
    save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
