"""Composition root: joins gateway, engine and models, and says what a conversation needs.

The engine, the models and what hears are imported when they are asked for, so that `--help` answers
at once and the number of torch threads can still be chosen.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.applications import Starlette

from engine.config import DtypeChoice, EngineConfig
from engine.errors import EngineStoppedError
from models.errors import ModelError
from models.hub import Needs, fetch, hub_name
from models.spec import ModelSpec
from realtime.bridge import EventRelay
from realtime.config import GatewayConfig
from realtime.errors import ConfigError, GatewayError
from realtime.terminal.display import progress_bar
from realtime.terminal.fetching import FetchDisplay

if TYPE_CHECKING:
    import torch

    from engine.loop import EngineLoop
    from engine.thread import EngineThread
    from engine.trace import TraceFile
    from models.base import SpeechModel
    from models.watermark.spectra import Mark
    from realtime.agent.assemble import AgentConfig
    from realtime.conversation.conversing import Conversing
    from realtime.gateway import Gateway

    LoadMark = Callable[[], Mark]

TEXT_STREAMS = 4
"""Answers that are written at once; more wait."""
TEXT_PAGES = 640
"""Enough for four long conversations; a page of the embedded text model takes 737 kB."""
TEXT_PREFILL_ROWS = 32
"""Prompt rows of the text model in a step: more would hold up the speech that plays (1 ms each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """What conversations need beside engines.

    Args:
        converse: makes it, of the gateway.
        licences: of the weights that hear.
    """

    converse: Callable[[Gateway], Conversing]
    licences: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where models run, and how that can be watched.

    Args:
        device: of the models, as torch names it.
        detokenizer_device: of a copy of each model that only detokenizes; None: none is made.
        dtype: precision of their decoders and of KV; `auto`: bfloat16 on a GPU.
        trace: file that is told what the engine does when.
    """

    device: str = "cpu"
    detokenizer_device: str | None = None
    dtype: DtypeChoice = "auto"
    trace: Path | None = None


HERE: Final = Placement()
"""All on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Marks in what is spoken.

    Args:
        asked: folders or names of the hub, for all models or as `MODEL=PLACE`.
        message: what is spelt by a mark that can spell.
    """

    asked: Sequence[str] = ()
    message: bytes = b""


NO_MARKS: Final = Watermarks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """A running engine thread, the sinks of its loops by model name, and what hears.

    `no_talk` says why there are no conversations although they were wanted where possible.
    """

    thread: EngineThread
    relays: dict[str, EventRelay] = field(default_factory=dict)
    talk: Talk | None = None
    no_talk: str = ""

    def app(self, config: GatewayConfig) -> Starlette:
        """The gateway around them."""
        from realtime.server import build_app

        handles = dict(zip(self.relays, self.thread.handles, strict=True))
        converse = None if self.talk is None else self.talk.converse
        return build_app(handles, config, self.relays, converse)


@contextmanager
def running_engines(
    names: Sequence[str],
    config: EngineConfig,
    threads: int,
    agents: AgentConfig | None = None,
    *,
    must_talk: bool = False,
    placement: Placement = HERE,
    watermarks: Watermarks = NO_MARKS,
) -> Iterator[Engines]:
    """Load and warm up the models, with a progress bar; stop the thread at the end.

    Args:
        names: of models; the first is the default. Those of the hub are fetched first.
        config: of the engine loops.
        threads: torch threads.
        agents: how to converse; None: speak only.
        must_talk: what a conversation lacks is an error, not a remark.
        placement: of the models.
        watermarks: in what they speak.
    """
    # Before torch is imported: its thread pools read these once.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from models import registry

    names = [_at_hand(name, registry.needs) for name in names]
    marks = _marks_at_hand(watermarks, names)
    with progress_bar() as progress:
        task = progress.add_task("Loading torch", total=len(names) + 3)
        talk, no_talk, names = None, "", list(dict.fromkeys(names))
        if agents is not None:
            progress.update(task, description="Loading what hears")
            try:
                talk, names = _load_talk(agents, names)
            except (GatewayError, ModelError) as error:
                if must_talk:
                    raise
                no_talk = str(error)
        trace = _open_trace(placement.trace)
        relays, loops = _load_loops(
            names,
            config,
            placement,
            trace,
            marks,
            lambda name: progress.update(task, advance=1, description=name),
        )
        from engine.thread import EngineThread

        progress.update(task, advance=1, description="Warming up")
        thread = EngineThread(loops)
        # NOTE: a thread that still runs model code when the interpreter ends aborts the process, so
        # Ctrl-C during the warm-up waits for its end too.
        try:
            thread.start()
            if not thread.wait_ready():
                raise EngineStoppedError(f"the engine cannot start: {thread.failure}")
            progress.update(task, completed=len(names) + 3)
        except BaseException:
            thread.stop()
            raise
    try:
        yield Engines(thread=thread, relays=relays, talk=talk, no_talk=no_talk)
    finally:
        thread.stop()
        if trace is not None:
            trace.close()


def _at_hand(place: str, needs: Callable[[Path], Needs]) -> str:
    """A name or folder as it is; what is of the hub becomes the folder that it was fetched to.

    Raises:
        HubError: it cannot be had.
    """
    name = hub_name(place)
    if name is None:
        return place
    with FetchDisplay(name.repository) as watch:
        return str(fetch(name, needs, watch))


def _marks_at_hand(watermarks: Watermarks, names: Sequence[str]) -> dict[str, LoadMark]:
    """How the mark of each model that gets one is loaded; once is enough to see that it can be."""
    if not watermarks.asked:
        return {}
    from models.registry import read_spec
    from models.watermark.choice import assigned, needs
    from models.watermark.loading import load_mark

    places = assigned(watermarks.asked, {name: read_spec(name) for name in names})
    loads: dict[str, LoadMark] = {
        name: partial(load_mark, Path(_at_hand(place, needs)), watermarks.message)
        for name, place in places.items()
    }
    for load in loads.values():
        load()
    return loads


def _load_talk(agents: AgentConfig, names: Sequence[str]) -> tuple[Talk, list[str]]:
    """What hears, and the models to run: those named, and one that writes answers."""
    from models.registry import read_spec
    from realtime.agent.assemble import TEXT_MODEL, load_hearing, make_conversing

    specs = [read_spec(name) for name in names]
    writes = any("text" in spec.tasks or "converse" in spec.tasks for spec in specs)
    if agents.llm is None and not writes:
        read_spec(TEXT_MODEL)
        names = [*names, TEXT_MODEL]
    hearing = load_hearing(agents)
    converse = partial(make_conversing, config=agents, hearing=hearing)
    return Talk(converse=converse, licences=hearing.licences), list(names)


def _open_trace(path: Path | None) -> TraceFile | None:
    """The file of a trace. Raises: `ConfigError`, it cannot be written."""
    if path is None:
        return None
    from engine.trace import TraceFile

    try:
        return TraceFile(path, time.monotonic)
    except OSError as error:
        raise ConfigError(f"--trace: {path} cannot be written: {error.strerror}") from error


class _Placed(NamedTuple):
    """A loaded model, and where it runs."""

    model: SpeechModel
    detokenizer: SpeechModel | None
    device: torch.device
    codec_device: torch.device
    dtype: torch.dtype


def _load_loops(
    names: Sequence[str],
    config: EngineConfig,
    placement: Placement,
    trace: TraceFile | None,
    marks: Mapping[str, LoadMark],
    on_load: Callable[[str], None],
) -> tuple[dict[str, EventRelay], list[EngineLoop]]:
    from engine.device import checked_device, dtype_of, load_on
    from engine.loop import EngineLoop
    from engine.memory import FOR_WEIGHTS, budget, telling_what_to_lower

    placed: list[_Placed] = []
    for name in names:
        on_load(f"Loading {name}")
        where = _for(name, placement)
        device = checked_device(where.device)
        codec_device = checked_device(where.detokenizer_device or where.device)
        dtype = dtype_of(where.dtype, device)
        with telling_what_to_lower(f"loading {name}", FOR_WEIGHTS):
            model, detokenizer = load_on(name, device, dtype), None
            if codec_device != device:
                # NOTE: the copy holds the LM too, which is not used there.
                detokenizer = load_on(name, codec_device, dtype)
            if name in marks:
                model = _marked(model, marks[name], device)
                detokenizer = detokenizer and _marked(detokenizer, marks[name], codec_device)
        placed.append(_Placed(model, detokenizer, device, codec_device, dtype))
    # What all weights leave of a device is shared evenly.
    n_models = Counter(one.device for one in placed)
    shares = {device: budget(config, device) // n for device, n in n_models.items()}
    relays, loops = {}, []
    for one in placed:
        spec = one.model.spec
        name = spec.name
        relay = relays[name] = EventRelay()
        with telling_what_to_lower(f"making room for {name}"):
            loop = EngineLoop(
                one.model,
                _sized(replace(config, memory_bytes=shares[one.device]), spec),
                relay,
                time.monotonic,
                one.device,
                one.dtype,
                detokenizer=one.detokenizer,
                codec_device=one.codec_device,
                trace=None if trace is None else trace.loop(name),
            )
        loops.append(loop)
    return relays, loops


def _marked(model: SpeechModel, load_mark: LoadMark, device: torch.device) -> SpeechModel:
    from models.watermark.marked import Marked

    return Marked(model, load_mark()).to(device)


def _for(name: str, placement: Placement) -> Placement:
    """Where a model runs: as told, but for one whose layers compute on a CPU alone."""
    from models import registry

    return HERE if registry.is_of_cpu(name) else placement


def _sized(config: EngineConfig, spec: ModelSpec) -> EngineConfig:
    """The settings of a loop: a text model is heavy, and must not hold up the one that speaks."""
    if "speak" in spec.tasks or "text" not in spec.tasks:
        return config
    return replace(
        config,
        max_streams=min(config.max_streams, TEXT_STREAMS),
        n_pages=TEXT_PAGES,
        prefill_rows_per_step=TEXT_PREFILL_ROWS,
    )
