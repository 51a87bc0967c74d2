"""`smollm2-135m`, put together to the contract of `models.base`: text in, text out, no codec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from models.base import Advance, Attention, PromptPlan, TextFeed
from models.errors import WeightError
from models.layers.rotary import Rotary
from models.layers.transformer import Decoder
from models.module import ModelModule
from models.smollm import prompt
from models.smollm.config import END_ID, END_OF_TEXT_ID, SMOLLM2_135M, SmolConfig, model_spec
from models.smollm.linear import Int4Linear, Int8Table, has_int4_kernel
from models.smollm.tokenizer import SmolTokenizer
from models.smollm.weights import Rows, arrange, dequantized, read_file, weights_folder
from models.spec import ModelSpec, PlanRequest
from models.weights import load_weights

Precision = Literal["float32", "int4"]


class SmolModel(ModelModule):
    """The functions of the model.

    Args:
        config: shape of the weights.
        tokenizer: of the same file.
        weights: by our names, see `models.smollm.weights.arrange`.
        precision: `int4` computes from the quants of the file on a CPU; `float32` from their
            values, on any device.

    Raises:
        WeightError: weights of another shape, or not in an encoding that `int4` can use.
    """

    def __init__(
        self,
        config: SmolConfig,
        tokenizer: SmolTokenizer,
        weights: Mapping[str, Rows],
        precision: Precision,
    ) -> None:
        super().__init__()
        self.spec = model_spec(config)
        self.tokenizer = tokenizer
        self.decoder = _make_decoder(config)
        table = weights["table"]
        if precision == "int4":
            self.table: nn.Module = Int8Table(table)
            self.head: nn.Module = Int4Linear(table)
            dense = _use_int4(self.decoder, weights)
        else:
            embedding = nn.Embedding(config.n_ids, config.hidden, _weight=dequantized(table))
            head = nn.Linear(config.hidden, config.n_ids, bias=False, device="meta")
            head.weight = embedding.weight
            self.table, self.head = embedding, head
            dense = {key: rows for key, rows in weights.items() if key != "table"}
        tensors = {
            f"{key.removeprefix('decoder.')}.weight": dequantized(rows)
            for key, rows in dense.items()
        }
        load_weights(self.decoder, tensors, source="the GGUF file")
        self.requires_grad_(False)

    def plan(self, request: PlanRequest) -> PromptPlan:
        """Make the prompt. Worker thread. Raises: `PlanError`, see `models.smollm.prompt.plan`."""
        return prompt.plan(request, self.spec, self.tokenizer)

    def detokenize_text(self, ids: Sequence[int]) -> str:
        """See `models.smollm.tokenizer.SmolTokenizer.decode`."""
        return self.tokenizer.decode(ids)

    def embed(self, ids: Tensor, phase: Tensor) -> Tensor:
        """See `models.base.SpeechModel.embed`."""
        x: Tensor = self.table(ids[:, 0])
        return x

    def backbone(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """See `models.base.SpeechModel.backbone`."""
        hidden: Tensor = self.decoder(x, positions, attention)
        return hidden

    def heads(self, hidden: Tensor) -> list[Tensor]:
        """Logits of the text column."""
        return [self.head(hidden)]

    def advance(self, state: Tensor, ids: Tensor, feed: TextFeed) -> Advance:
        """Every id is text, until one of the ends."""
        text = ids[:, 0]
        is_end = (text == END_ID) | (text == END_OF_TEXT_ID)
        never = torch.zeros_like(is_end)
        return Advance(
            rows=ids,
            state=state,
            frames=torch.zeros_like(ids),
            emits=never,
            text_ids=text.masked_fill(is_end, -1),
            is_finished=is_end,
            is_starved=never,
        )


def read_spec(folder: Path | None = None) -> ModelSpec:
    """The model's facts. Raises: `WeightError` where the weights are not installed."""
    if folder is None:
        weights_folder()
    return model_spec(SMOLLM2_135M)


def load(folder: Path | None = None, *, precision: Precision | None = None) -> SmolModel:
    """The model with its weights, checked by SHA-256, on the CPU.

    Args:
        folder: where the GGUF file lies; None: in the installed package.
        precision: None takes `int4` where its kernel is fast, else `float32`.

    Raises:
        WeightError: the file is missing or changed, or a library to read it is missing.
    """
    file = read_file(folder or weights_folder())
    if precision is None:
        precision = "int4" if has_int4_kernel() else "float32"
    tokenizer = SmolTokenizer(file.tokens, file.merges)
    return SmolModel(SMOLLM2_135M, tokenizer, arrange(file.tensors, SMOLLM2_135M), precision)


def _make_decoder(config: SmolConfig) -> Decoder:
    """The decoder without values: drawing 106 million random ones takes seconds."""
    with torch.device("meta"):
        decoder = Decoder(config.backbone, inner=config.inner, theta=config.theta, eps=config.eps)
    decoder.to_empty(device="cpu")
    decoder.rotary = Rotary(config.head_dim, config.max_positions, config.theta)
    return decoder


def _use_int4(decoder: Decoder, weights: Mapping[str, Rows]) -> dict[str, Rows]:
    """Put int4 layers in place of the linear ones; the weights that are left over."""
    left = {key: rows for key, rows in weights.items() if key != "table"}
    linears = {f"decoder.{n}": m for n, m in decoder.named_modules() if isinstance(m, nn.Linear)}
    for key, linear in linears.items():
        packed = Int4Linear(left.pop(key))
        if packed.shape != (linear.out_features, linear.in_features):
            expected = (linear.out_features, linear.in_features)
            raise WeightError(f"the GGUF file has {key} of {packed.shape}, expected {expected}")
        decoder.set_submodule(key.removeprefix("decoder."), packed)
    return left
