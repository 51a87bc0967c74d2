"""The settings of one session as they are in force, and the agent that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from realtime.agent.base import Agent, why_unheard
from realtime.conversation.conversing import Conversing
from realtime.conversation.protocol import (
    AnswerCreate,
    ConversationInfo,
    ConversationUpdate,
    Kept,
    KeptCreate,
    KeptUpdate,
    Transcribing,
)
from realtime.conversation.settings import (
    ConversationSettings,
    conversation_info,
    default_turn_detection,
    merge_conversation,
    merge_kept,
)
from realtime.errors import ProtocolError
from realtime.gateway import Gateway
from realtime.settings import SpeechSettings


class SettingsInForce:
    """What holds now, and what would hold after a change.

    Args:
        session_id: of the session.
        gateway: what sessions share.
        conversing: who can answer.
        opening: changes to the defaults when the session begins, in order.

    Raises:
        ProtocolError: a change that cannot be made.
    """

    def __init__(
        self,
        session_id: str,
        gateway: Gateway,
        conversing: Conversing,
        opening: Sequence[ConversationUpdate],
    ) -> None:
        self._session_id = session_id
        self._config = gateway.config
        self._agents = conversing.agents
        self._specs = conversing.specs
        self._expires_at = round(datetime.now(UTC).timestamp() + self._config.max_session_s)
        self.now = ConversationSettings(
            speech=SpeechSettings(model=next(iter(conversing.agents))),
            turn_detection=default_turn_detection(has_judge=conversing.judge is not None),
        )
        for change in opening:
            self.now = self.updated(change)

    @property
    def agent(self) -> Agent:
        """Who answers."""
        return self._agents[self.now.speech.model]

    def info(self) -> ConversationInfo:
        """The session as clients see it."""
        return conversation_info(
            self._session_id,
            self.now,
            self.agent.spec,
            self._config,
            expires_at=self._expires_at,
        )

    def updated(self, event: ConversationUpdate) -> ConversationSettings:
        """What would hold after a change. Raises: `ProtocolError`."""
        kept = event.kept if isinstance(event, KeptUpdate) else {}
        merged = merge_conversation(self.now, event.session, self._specs, prefix="session")
        return self._checked(merged, kept, "session")

    def of_answer(self, event: AnswerCreate) -> ConversationSettings:
        """What holds for one answer. Raises: `ProtocolError`."""
        kept = event.kept if isinstance(event, KeptCreate) else {}
        merged = merge_conversation(self.now, event.response, self._specs, prefix="response")
        return self._checked(merged, kept, "response")

    def _checked(
        self, settings: ConversationSettings, kept: Kept, prefix: str
    ) -> ConversationSettings:
        model = settings.speech.model
        agent = self._agents[model]
        if settings.tools and not agent.calls_tools:
            message = f"{model} cannot call tools: it answers by itself"
            if not agent.spec.takes_audio:
                message = (
                    f"the text model behind {model} cannot call tools; start the server with "
                    "--llm-url and a model that can"
                )
            raise ProtocolError("tools_not_supported", message, param=f"{prefix}.tools")
        _check_transcription(settings.transcription, agent.transcribed_languages)
        return replace(settings, kept=merge_kept(settings.kept, kept))


def _check_transcription(wanted: Transcribing | None, languages: tuple[str, ...]) -> None:
    """Found here, not turn by turn. `languages`: empty takes any. Raises: `ProtocolError`."""
    if wanted is None or wanted.language is None:
        return
    if fault := why_unheard(wanted.language, languages):
        param = "session.audio.input.transcription.language"
        raise ProtocolError("unsupported_language", fault, param=param)
