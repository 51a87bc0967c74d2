"""Weights of the codec of Qwen3-TTS: its checkpoint's keys brought to those of our modules.

Source of the names: `qwen-tts` 0.1.1, `tokenizer_12hz`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from models.codecs.codebooks import codebook, stacked
from models.codecs.qwen import QwenCodec, QwenCodecConfig
from models.errors import WeightError
from models.weights import Part, load_weights

_PREFIX: Final = "decoder."
_RENAMED: Final = {
    "pre_transformer.layers.": "pre_transformer.layers_.layers.",
    ".mlp.down_proj.": ".mlp.down.",
}
"""Parts of keys, theirs and ours."""
_GATES: Final = ("gate_proj.weight", "up_proj.weight")
"""Joined here, in this order."""


def load_qwen_codec(
    config: QwenCodecConfig, tensors: Mapping[str, Tensor], *, source: str
) -> QwenCodec:
    """The decoder from the weights of a codec checkpoint; what only encodes is left out.

    Raises:
        WeightError: keys are missing, unexpected or misshapen; they are named.
    """
    model = QwenCodec(config)
    joined = _joined(tensors, config, source)
    names = {key: _theirs(key) for key in (*model.state_dict(), *joined)}
    load_weights(model, joined, source=source, names=names)
    return model.requires_grad_(False)


def _joined(
    tensors: Mapping[str, Tensor], config: QwenCodecConfig, source: str
) -> dict[str, Tensor | Sequence[Part]]:
    """What decodes, by the keys of our modules. Raises: `WeightError`, it names theirs."""
    joined: dict[str, Tensor | Sequence[Part]] = {}
    levels: dict[str, dict[int, dict[str, Tensor]]] = {}
    gates: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name = key.removeprefix(_PREFIX)
        if name == key or (".input_proj." in name and name.startswith("quantizer.")):
            continue
        stem, _, kind = name.rpartition(".mlp.")
        if "._codebook." in name:
            part, _, rest = name.partition(".vq.layers.")
            level, _, kind = rest.partition("._codebook.")
            levels.setdefault(part, {}).setdefault(int(level), {})[kind] = tensor
        elif stem and kind in _GATES:
            gates.setdefault(stem, {})[kind] = tensor
        else:
            joined[_ours(name)] = tensor
    for part, by_level in levels.items():
        place = f"{source}: {_PREFIX}{part}.vq.layers"
        tables = [
            codebook(by_level[n], "embedding_sum", f"{place}.{n}._codebook")
            for n in sorted(by_level)
        ]
        joined[f"{part}.tables"] = stacked(tables, place)
    for stem, kinds in gates.items():
        if lacking := [kind for kind in _GATES if kind not in kinds]:
            raise WeightError(f"{source} lacks {_PREFIX}{stem}.mlp.{lacking[0]}")
        joined[_ours(f"{stem}.mlp.gate_up.weight")] = [
            Part(name=f"{_PREFIX}{stem}.mlp.{kind}", tensor=kinds[kind], n_rows=config.inner)
            for kind in _GATES
        ]
    return joined


def _ours(name: str) -> str:
    for theirs, ours in _RENAMED.items():
        name = name.replace(theirs, ours)
    return name


def _theirs(name: str) -> str:
    """As the file has it; of what is joined, the first."""
    for theirs, ours in _RENAMED.items():
        name = name.replace(ours, theirs)
    for joined, first in ((".mlp.gate_up.", ".mlp.gate_proj."), (".tables", ".vq.layers")):
        name = name.replace(joined, first)
    return _PREFIX + name
