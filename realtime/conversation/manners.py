"""What a lane asks of its sessions: how its clients behave, and what they are told. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from realtime.conversation.protocol import ConversationUpdate
from realtime.wire_form import ParleyForm, WireForm


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """The ways of a lane's clients.

    Args:
        form: of the messages to them.
        opening: changes to the default settings when a session begins, in order.
        is_client_truncating: they stop their own playout when the user speaks, and say how much was
            heard; until then it is estimated. Otherwise they are told.
        may_be_silent: a session without messages stays open as long as sessions may last.
    """

    form: WireForm = field(default_factory=ParleyForm)
    opening: Sequence[ConversationUpdate] = ()
    is_client_truncating: bool = False
    may_be_silent: bool = False
