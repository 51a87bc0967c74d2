"""The conversation as a text model gets it: within a budget of tokens. Pure, any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from realtime.agent.base import CallResult, ContextItem, FunctionCall, Message, PastCall
from realtime.agent.text_model import ChatMessage, estimate_tokens

Cost = Callable[[ChatMessage], int]


def prompt_messages(
    items: Sequence[ContextItem],
    *,
    instructions: str,
    max_tokens: int,
    calls_tools: bool = False,
    cost: Cost = estimate_tokens,
) -> tuple[ChatMessage, ...]:
    """The system message and the newest part of the conversation.

    The oldest rounds are left out, a round being what a user says and all that follows up to the
    next user. They go half a budget at a time, so that the prompts of successive turns begin alike
    and the model's cache of their first rows holds. The newest round stays whatever it costs.

    Args:
        items: the conversation, oldest first; of interrupted answers only what was heard.
        instructions: of the session.
        max_tokens: what the whole may cost.
        calls_tools: whether the model knows calls; they are left out otherwise.
        cost: of a message, in tokens.
    """
    opening = [ChatMessage(role="system", text=instructions)] if instructions else []
    messages = _messages(items, calls_tools=calls_tools)
    opening += [one for one in messages if one.role == "system"]
    rounds = _rounds([one for one in messages if one.role != "system"])
    costs = [sum(map(cost, one)) for one in rounds]
    kept = rounds[_n_left_out(costs, max_tokens - sum(map(cost, opening))) :]
    return (*opening, *(message for one in kept for message in one))


def _n_left_out(costs: Sequence[int], budget: int) -> int:
    """How many of the oldest rounds are left out."""
    most = max(budget, 1)
    step = max(most // 2, 1)
    excess = sum(costs) - most
    if excess <= 0:
        return 0
    # Where the cut lies depends on the rounds before it alone, not on how many have come since.
    wanted = -(-excess // step) * step
    gone = 0
    for n_rounds, one in enumerate(costs):
        if gone >= wanted:
            return n_rounds
        gone += one
    return len(costs) - 1


def _rounds(messages: Sequence[ChatMessage]) -> list[list[ChatMessage]]:
    rounds: list[list[ChatMessage]] = []
    for message in messages:
        if message.role == "user" or not rounds:
            rounds.append([])
        rounds[-1].append(message)
    return rounds


def _messages(items: Sequence[ContextItem], *, calls_tools: bool) -> list[ChatMessage]:
    answered = {item.call_id for item in items if isinstance(item, CallResult)}
    made: set[str] = set()
    messages: list[ChatMessage] = []
    for item in items:
        match item:
            case Message(role=role, text=text):
                if text and text.strip():
                    messages.append(ChatMessage(role=role, text=text))
            # Endpoints refuse a call without its result, and a result without its call.
            case PastCall() if calls_tools and item.call_id in answered:
                made.add(item.call_id)
                _add_call(messages, item)
            case CallResult() if item.call_id in made:
                messages.append(ChatMessage(role="tool", text=item.output, call_id=item.call_id))
            case _:
                pass
    return messages


def _add_call(messages: list[ChatMessage], item: PastCall) -> None:
    """A call goes into the assistant's message before it, as the API wants calls of one answer."""
    call = FunctionCall(call_id=item.call_id, name=item.name, arguments=item.arguments)
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant":
        messages[-1] = ChatMessage(role="assistant", text=last.text, calls=(*last.calls, call))
    else:
        messages.append(ChatMessage(role="assistant", text="", calls=(call,)))
