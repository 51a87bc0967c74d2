"""Puts together what one loop has on the device: streams, runners, graphs. Engine thread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from engine.attention import make_attention
from engine.codec_runner import CodecRunner
from engine.config import DtypeChoice, EngineConfig
from engine.device_streams import Clock, make_streams
from engine.errors import EngineConfigError
from engine.graphs import make_graphs
from engine.in_flight import InFlight
from engine.launch import Launcher
from engine.runner import Runner
from models import registry
from models.base import SpeechModel
from models.layers.linear import pack
from models.layers.transformer import cast_decoders

CPU: Final = torch.device("cpu")
DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def checked_device(name: str) -> torch.device:
    """The device of this name. Raises: `EngineConfigError`, there is none."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    # What torch was built without is an AssertionError.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise EngineConfigError(f"device {name!r} cannot be used: {reason}") from error
    return device


def dtype_of(choice: DtypeChoice, device: torch.device) -> torch.dtype:
    """The precision of decoders and KV: as told, or the usual one of the device."""
    if choice == "auto":
        choice = "bfloat16" if device.type == "cuda" else "float32"
    return DTYPES[choice]


def load_on(
    name: str | Path, device: torch.device = CPU, dtype: torch.dtype = torch.float32
) -> SpeechModel:
    """Load a model with its decoders in `dtype`: laid out for the CPU, or moved to the device.

    Raises:
        ModelError: there is none, or its weights cannot be read.
    """
    model = registry.load(name)
    if not isinstance(model, nn.Module):
        return model
    cast_decoders(model, dtype)
    if device.type != "cpu":
        return model.to(device)
    pack(model)
    return model


class DeviceSide:
    """The device side of a loop.

    Args:
        model: on `device`.
        config: sizes; whether steps are recorded and overlapped.
        device: of the LM and its streams' state.
        dtype: of KV.
        clock: monotonic seconds.
        detokenizer: the model whose `decode` is used, on `codec_device`; None: `model`.
        codec_device: where chunks are detokenized; None: on `device`.
    """

    def __init__(
        self,
        model: SpeechModel,
        config: EngineConfig,
        device: torch.device,
        dtype: torch.dtype,
        clock: Clock,
        *,
        detokenizer: SpeechModel | None = None,
        codec_device: torch.device | None = None,
    ) -> None:
        codec_device = device if codec_device is None else codec_device
        n_slots = config.max_streams
        is_overlapped = config.overlap == "on" or (
            config.overlap == "auto" and device.type == "cuda"
        )
        self._models = (model,) if detokenizer is None else (model, detokenizer)
        self.streams = make_streams(device, codec_device, clock)
        with self.streams.queue():
            # Graphs of one memory pool run one after another, so each stream has its own.
            self._graphs = make_graphs(config.graphs, device)
            self._codec_graphs = make_graphs(config.graphs, codec_device)
            self.runner = Runner(
                model,
                make_attention(model.spec, config, device, dtype),
                n_slots,
                device,
                dtype,
                graphs=self._graphs,
                is_overlapped=is_overlapped,
                codec_device=codec_device,
                most_prompt_rows=config.prefill_rows_per_step,
            )
        self.codec = CodecRunner(
            self._models[-1],
            self.runner.slots,
            n_slots,
            codec_device,
            self.streams,
            self._codec_graphs,
        )
        self.launcher = Launcher(self.runner, self.codec, n_slots, self.streams)
        self.in_flight = InFlight(self.streams, is_overlapped=is_overlapped)
        self._devices = tuple(dict.fromkeys((device, codec_device)))
        self.recorded_bytes: Mapping[str, int] = {}
        """By device: memory that torch took from it for steps that were recorded."""
        # Whatever stream has filled it: what was made here is there for all of them.
        for one in self._devices:
            if one.type == "cuda":
                torch.cuda.synchronize(one)

    def capture(self) -> None:
        """Record all calls that will be replayed; at start, while no stream is there."""
        if self._graphs is None or self._codec_graphs is None:
            return
        if self._graphs.keys:
            return  # A loop that was measured is warmed up again by its thread.
        before = self._reserved_bytes()
        self.runner.capture()
        if any(phase.feeds_codec for phase in self.runner.spec.phases):
            with self.streams.codec.queue():
                self.codec.capture()
        self._graphs.watch(self._weights)
        self.recorded_bytes = {
            name: max(0, n_bytes - before[name]) for name, n_bytes in self._reserved_bytes().items()
        }

    def check(self) -> None:
        """Refuse to go on with weights that are not those of the recordings."""
        if self._graphs is not None:
            self._graphs.check()

    def _reserved_bytes(self) -> dict[str, int]:
        return {
            str(one): torch.cuda.memory_reserved(one) for one in self._devices if one.type == "cuda"
        }

    def _weights(self) -> Mapping[str, Tensor]:
        """The tensors of the models by name."""
        modules = [model for model in self._models if isinstance(model, nn.Module)]
        return {
            f"{idx}.{name}": tensor
            for idx, module in enumerate(modules)
            for name, tensor in module.state_dict(keep_vars=True).items()
        }
