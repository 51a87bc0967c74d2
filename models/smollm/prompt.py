"""Conversations to prompts: `plan` of `smollm`. Runs in a worker thread, touches no weights.

ChatML: each message is `<|im_start|>` role, newline, text `<|im_end|>` newline; the reply is what
follows an opened message of the assistant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from models.base import PromptPlan
from models.errors import PlanError
from models.options import check_language, check_options
from models.smollm.config import END_ID, MAX_TOKENS, START_ID, TEMPERATURE, TEXT_COLUMN, sampling_at
from models.smollm.tokenizer import SmolTokenizer
from models.spec import Message, ModelSpec, PlanRequest

DEFAULT_SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""Source: the chat template in the GGUF metadata; used where a conversation does not open with a
system message."""

MAX_CHARACTERS_PER_ROW: Final = 20
"""Longer conversations are refused before any work: hardly any text has so many a token."""


def plan(request: PlanRequest, spec: ModelSpec, tokenizer: SmolTokenizer) -> PromptPlan:
    """Make the prompt that asks for the next message of the assistant.

    All of it may be shared: the next turn of a conversation opens with the rows of this one, and
    every conversation under one system message opens with its rows.

    Raises:
        PlanError: `unknown_option`, `invalid_type`, `invalid_value`, `unsupported_language`,
            `empty_text` (no message), `prompt_too_long` (drop the oldest messages).
    """
    options = check_options(spec, request.options)
    check_language(spec, request.language)
    max_tokens = int(options[MAX_TOKENS.name])
    n_most = spec.backbone.max_positions - max_tokens
    messages = _messages(request)
    n_characters = sum(len(message.text) for message in messages)
    if n_characters > MAX_CHARACTERS_PER_ROW * n_most:
        raise _too_long(f"{n_characters} characters", n_most, max_tokens)
    ids = prompt_ids(messages, tokenizer)
    if len(ids) > n_most:
        raise _too_long(f"{len(ids)} tokens", n_most, max_tokens)
    return PromptPlan(
        ids=torch.tensor(ids, dtype=torch.int64).unsqueeze(1),
        state=torch.zeros(spec.state_size, dtype=torch.int64),
        max_frames=max_tokens,
        prefix_key=spec.name,
        prefix_rows=len(ids),
        sampling={TEXT_COLUMN: sampling_at(float(options[TEMPERATURE.name]))},
    )


def prompt_ids(messages: Sequence[Message], tokenizer: SmolTokenizer) -> list[int]:
    """Ids of a conversation and of the opened reply."""
    if messages[0].role != "system":
        messages = [Message(role="system", text=DEFAULT_SYSTEM), *messages]
    newline = tokenizer.encode("\n")
    ids: list[int] = []
    for message in messages:
        ids += [START_ID, *tokenizer.encode(f"{message.role}\n{message.text}"), END_ID, *newline]
    return [*ids, START_ID, *tokenizer.encode("assistant\n")]


def _messages(request: PlanRequest) -> list[Message]:
    """The conversation; the request's own text is its last message. Raises: `PlanError`.

    Where nobody has said anything yet, the system message alone asks for a first word.
    """
    messages = list(request.messages)
    if request.text.strip():
        messages.append(Message(role="user", text=request.text))
    if not any(message.text.strip() for message in messages):
        raise PlanError("empty_text", "there is no message to answer", "text")
    return messages


def _too_long(size: str, n_most: int, max_tokens: int) -> PlanError:
    message = (
        f"the conversation has {size}; with a reply of up to {max_tokens} tokens there is room for "
        f"{n_most} tokens: leave out the oldest messages"
    )
    return PlanError("prompt_too_long", message, "messages")
