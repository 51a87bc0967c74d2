"""CosyVoice 2's own classes on a folder's weights: what its LM makes of prompts and streamed text.

All three files of weights are loaded strictly. With `text<n>`, `words<n>`, `codes<n>` it gives
`logits<n>` of the prompt's last row and `speech<n>`, the likeliest tokens one after another; with
`streamed<n>` it gives `speech<n>` of a text that comes an id at a time.

The reference leaves it to the LM to ask for text after its first group of speech, and feeds the
last speech token of a group again when the text is over. Here it asks when the group is full, as
the LM was trained to, and nothing is fed twice.
"""

import itertools
import sys
from pathlib import Path

import torch
from cosyvoice_stubs import stub_cosyvoice_libraries
from safetensors.torch import load_file, save_file

stub_cosyvoice_libraries()
import cosyvoice.llm.llm as lm  # noqa: E402
from cosyvoice.flow.decoder import CausalConditionalDecoder  # noqa: E402
from cosyvoice.flow.flow import CausalMaskedDiffWithXvec  # noqa: E402
from cosyvoice.flow.flow_matching import CausalConditionalCFM  # noqa: E402
from cosyvoice.hifigan.f0_predictor import ConvRNNF0Predictor  # noqa: E402
from cosyvoice.hifigan.generator import HiFTGenerator  # noqa: E402
from cosyvoice.transformer.upsample_encoder import UpsampleConformerEncoder  # noqa: E402
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

N_CODES = 6561
FILL = N_CODES + 2
GROUP_WORDS, GROUP = 5, 15


class Encoder(lm.Qwen2Encoder):
    """The LM's backbone, which the original reads from a folder with weights."""

    def __init__(self, folder: Path) -> None:
        torch.nn.Module.__init__(self)
        self.model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder)).eval()
        self.last_fed = torch.zeros(0)

    def forward_one_step(self, xs, masks, cache=None):
        """Nothing is fed twice, see above; and all that was fed before is seen.

        Of its masks some are as long as what is new; the library took those for all once.
        """
        if cache is not None and xs.shape[1] > 1 and torch.equal(xs[0, 0], self.last_fed):
            xs = xs[:, 1:]
        self.last_fed = xs[0, -1]
        n_before = 0 if cache is None else cache.get_seq_length()
        return super().forward_one_step(xs, torch.ones(1, 1, n_before + xs.shape[1]), cache)


def likeliest(scores: torch.Tensor, before: list[int], _: int) -> torch.Tensor:
    """In place of a draw; asks for text when the first group is full."""
    is_full = HAS_GROUPS and FILL not in before and len(before) == GROUP
    return torch.tensor([FILL]) if is_full else scores.argmax().view(1)


def keys_and_values(self: DynamicCache, idx: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As the library had it when the reference was written."""
    return self.layers[idx].keys, self.layers[idx].values


def check_detokenizer(folder: Path) -> None:
    """Raises where the files have another layout than the reference's classes."""
    encoder = UpsampleConformerEncoder(
        input_size=512,
        output_size=512,
        attention_heads=4,
        linear_units=64,
        num_blocks=1,
        input_layer="linear",
        pos_enc_layer_type="rel_pos_espnet",
        selfattention_layer_type="rel_selfattn",
        macaron_style=False,
        use_cnn_module=False,
    )
    estimator = CausalConditionalDecoder(
        in_channels=320,
        out_channels=80,
        channels=[32],
        dropout=0.0,
        attention_head_dim=8,
        n_blocks=1,
        num_mid_blocks=1,
        num_heads=2,
        act_fn="gelu",
    )

    class Solver:
        sigma_min, solver, t_scheduler = 1e-6, "euler", "cosine"
        training_cfg_rate, inference_cfg_rate = 0.2, 0.7

    decoder = CausalConditionalCFM(
        in_channels=240, cfm_params=Solver, n_spks=1, spk_emb_dim=80, estimator=estimator
    )
    flow = CausalMaskedDiffWithXvec(vocab_size=N_CODES, encoder=encoder, decoder=decoder)
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True), strict=True)
    hift = HiFTGenerator(
        base_channels=32,
        sampling_rate=24_000,
        upsample_rates=[8, 5, 3],
        upsample_kernel_sizes=[16, 11, 7],
        source_resblock_kernel_sizes=[7, 7, 11],
        source_resblock_dilation_sizes=[[1, 3, 5]] * 3,
        f0_predictor=ConvRNNF0Predictor(cond_channels=16),
    )
    hift.load_state_dict(torch.load(folder / "hift.pt", weights_only=True), strict=True)


def row(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"": ids.view(1, -1), "_len": torch.tensor([ids.numel()], dtype=torch.int32)}


def given(**ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Ids and their numbers as the reference takes them."""
    return {f"{name}{part}": x for name, one in ids.items() for part, x in row(one).items()}


folder = Path(sys.argv[1])
inputs = load_file(folder / "inputs.safetensors")
torch.set_num_threads(1)
check_detokenizer(folder)
DynamicCache.__getitem__ = keys_and_values
model = lm.Qwen2LM(0, 0, N_CODES, Encoder(folder / "CosyVoice-BlankEN"), likeliest).eval()
model.load_state_dict(torch.load(folder / "llm.pt", weights_only=True), strict=True)
n_rows, nothing = int(inputs["n_rows"]), torch.zeros(0, dtype=torch.int64)
none = {"embedding": torch.zeros(0, 192)}
heard: list[torch.Tensor] = []
model.llm_decoder.register_forward_hook(lambda *call: heard.append(call[2][0].clone()))
outputs = {}
for name in [name for name in inputs if name.startswith(("text", "streamed"))]:
    number = name.removeprefix("text").removeprefix("streamed")
    is_streamed = name.startswith("streamed")
    HAS_GROUPS = is_streamed and inputs[name].numel() >= GROUP_WORDS
    heard.clear()
    if is_streamed:
        ids = (one.view(1, 1) for one in inputs[name])
        prompt = given(prompt_text=nothing, prompt_speech_token=nothing)
        speech = model.inference_bistream(ids, **prompt, **none)
    else:
        words, codes = inputs[f"words{number}"], inputs[f"codes{number}"]
        prompt = given(text=inputs[name], prompt_text=words, prompt_speech_token=codes)
        speech = model.inference(**prompt, **none, max_token_text_ratio=float(n_rows))
    outputs[f"speech{number}"] = torch.tensor(list(itertools.islice(speech, n_rows)))
    outputs[f"logits{number}"] = heard[0]
save_file({k: v.contiguous() for k, v in outputs.items()}, folder / "outputs.safetensors")
