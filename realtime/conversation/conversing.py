"""What conversations need beside the gateway: who answers, and what hears. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from models.spec import ModelSpec
from realtime.agent.base import Agent, EndOfTurnJudge, VoiceDetector


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversing:
    """The parts of the server that converse; shared by all sessions.

    Args:
        agents: by the model name that clients choose; the first is the default.
        detector: finds voices.
        judge: of ends of turns; None: silence alone decides.
    """

    agents: Mapping[str, Agent]
    detector: VoiceDetector
    judge: EndOfTurnJudge | None = None

    def __post_init__(self) -> None:
        """Somebody must answer."""
        assert self.agents, "a conversation needs an agent"

    @property
    def specs(self) -> dict[str, ModelSpec]:
        """What each agent states of its voice."""
        return {name: agent.spec for name, agent in self.agents.items()}

    async def close(self) -> None:
        """Give back what agents and judge hold. The server stops: no session goes on."""
        for agent in self.agents.values():
            await agent.close()
        if self.judge is not None:
            await self.judge.close()
