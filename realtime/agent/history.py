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
    messages: list[ChatMessage] = []
    made: list[tuple[PastCall, CallResult]] = []
    for idx, item in enumerate(items):
        if isinstance(item, PastCall):
            result = _result_of(item, items[idx + 1 :])
            # Endpoints refuse a call without its result.
            if calls_tools and result is not None:
                made.append((item, result))
            continue
        messages += _call_messages(made, messages)
        made = []
        if isinstance(item, Message) and item.text and item.text.strip():
            messages.append(ChatMessage(role=item.role, text=item.text))
    return messages + _call_messages(made, messages)


def _result_of(call: PastCall, later: Sequence[ContextItem]) -> CallResult | None:
    results = (one for one in later if isinstance(one, CallResult))
    return next((one for one in results if one.call_id == call.call_id), None)


def _call_messages(
    made: Sequence[tuple[PastCall, CallResult]], before: list[ChatMessage]
) -> list[ChatMessage]:
    """Calls of one answer and their results, wherever those came; takes the answer's text along."""
    if not made:
        return []
    is_answer = bool(before) and before[-1].role == "assistant"
    text = before.pop().text if is_answer else ""
    calls = tuple(
        FunctionCall(call_id=call.call_id, name=call.name, arguments=call.arguments)
        for call, _ in made
    )
    results = [
        ChatMessage(role="tool", text=result.output, call_id=result.call_id) for _, result in made
    ]
    return [ChatMessage(role="assistant", text=text, calls=calls), *results]
