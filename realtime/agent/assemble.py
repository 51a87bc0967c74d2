"""Puts agents together from what the command line names. Part of the composition root.

`load_hearing` blocks and comes before the server; `make_conversing` is what `build_app` calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from realtime.agent.base import Agent
from realtime.agent.end_of_turn import SmartTurn, load_judge
from realtime.agent.endpoint import Endpoint, EndpointConfig
from realtime.agent.errors import AgentSetupError
from realtime.agent.native import NativeAgent
from realtime.agent.openai_text import OpenAiTextModel
from realtime.agent.openai_transcriber import OpenAiTranscriber
from realtime.agent.pipeline import PipelineAgent, Stages
from realtime.agent.speech_span import voice_probabilities
from realtime.agent.text_model import (
    SMALL_MODEL_INSTRUCTIONS,
    EngineTextModel,
    TextFacts,
    TextModel,
)
from realtime.agent.transcriber import LocalTranscriber, Transcriber
from realtime.agent.vad import SileroDetector, SileroVad, load_vad
from realtime.agent.whisper import Whisper, load_whisper
from realtime.conversation.conversing import Conversing
from realtime.gateway import Gateway

TEXT_MODEL: Final = "smollm2-135m"
"""The embedded default; the engine must run it unless an endpoint writes the answers."""
SMALL_REPLY_TOKENS: Final = 40
"""Longer answers of a small model lose the thread, and nobody listens for so long."""
SMALL_HISTORY_TOKENS: Final = 400
"""What a small model can make use of; and when the oldest half of it is left out, no more than that
has to be run again before the next answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """How agents hear and think.

    Args:
        whisper: see `realtime.agent.whisper.load_whisper`; unused with `stt`.
        whisper_device: `cpu` or `cuda`.
        stt: an endpoint that transcribes; None: Whisper here.
        llm: an endpoint that writes answers; None: the text model on our engine.
    """

    whisper: str = "tiny.en"
    whisper_device: str = "cpu"
    stt: EndpointConfig | None = None
    llm: EndpointConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """What is loaded for listening, and under which licences, by what it is."""

    vad: SileroVad
    whisper: Whisper | None = None
    judge: SmartTurn | None = None
    licences: dict[str, str] = field(default_factory=dict)


def load_hearing(config: AgentConfig) -> Hearing:
    """Load voice activity, the end-of-turn judge and speech to text. Blocking.

    Raises:
        GatewayError: a package is missing; the message says which.
        ModelError: its weights are not the ones that were tested.
    """
    vad = load_vad()
    licences = {"silero-vad": "MIT"}
    judge = load_judge()
    if judge is not None:
        licences[judge.name] = judge.licence
    if config.stt is not None:
        return Hearing(vad=vad, judge=judge, licences=licences)
    whisper = load_whisper(
        config.whisper, voice_probabilities(vad), device=config.whisper_device, n_threads=1
    )
    licences[whisper.name] = whisper.licence or "unknown"
    return Hearing(vad=vad, whisper=whisper, judge=judge, licences=licences)


def make_conversing(gateway: Gateway, config: AgentConfig, hearing: Hearing) -> Conversing:
    """Who answers, by the names of the models that speak, and what hears.

    Raises:
        AgentSetupError: nothing speaks, or nothing writes.
    """
    # A model that both reads out and answers needs nobody to write for it.
    speaking = [
        name
        for name, spec in gateway.specs.items()
        if "speak" in spec.tasks and "converse" not in spec.tasks
    ]
    agents: dict[str, Agent] = {}
    if speaking:
        transcriber = _transcriber(gateway, config, hearing)
        text_model = _text_model(gateway, config)
        for name in speaking:
            stages = Stages(
                transcriber=transcriber,
                text_model=text_model,
                bridge=gateway.bridges[name],
                workers=gateway.workers,
                config=gateway.config,
                clock=gateway.clock,
            )
            agents[name] = PipelineAgent(name, stages)
    for name, spec in gateway.specs.items():
        if name not in agents and "converse" in spec.tasks:
            agents[name] = NativeAgent(
                name,
                gateway.bridges[name],
                gateway.workers,
                gateway.config.engine_silence_s,
                None if spec.takes_audio else _transcriber(gateway, config, hearing),
            )
    if not agents:
        raise AgentSetupError(f"none of {', '.join(gateway.specs)} can speak")
    return Conversing(
        agents={name: agents[name] for name in gateway.specs if name in agents},
        detector=SileroDetector(hearing.vad, gateway.workers),
        judge=hearing.judge,
    )


def _transcriber(gateway: Gateway, config: AgentConfig, hearing: Hearing) -> Transcriber:
    if config.stt is not None:
        probabilities = voice_probabilities(hearing.vad)
        return OpenAiTranscriber(Endpoint(config.stt), probabilities, gateway.workers)
    assert hearing.whisper is not None, "loaded where no endpoint hears"
    return LocalTranscriber(hearing.whisper)


def _text_model(gateway: Gateway, config: AgentConfig) -> TextModel:
    if config.llm is not None:
        return OpenAiTextModel(Endpoint(config.llm))
    for name, spec in gateway.specs.items():
        if "text" in spec.tasks:
            facts = TextFacts(
                name=name,
                licence=spec.weights_licence,
                reply_tokens=SMALL_REPLY_TOKENS,
                history_tokens=SMALL_HISTORY_TOKENS,
                instructions=SMALL_MODEL_INSTRUCTIONS,
            )
            bridge, silence_s = gateway.bridges[name], gateway.config.engine_silence_s
            return EngineTextModel(bridge, gateway.workers, facts, silence_s=silence_s)
    message = f"nothing writes answers: load {TEXT_MODEL}, or name an endpoint with --llm-url"
    raise AgentSetupError(message)
