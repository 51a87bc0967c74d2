"""What of a conversation a text model is given."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.agent.base import CallResult, FunctionCall, Message, PastCall
from realtime.agent.history import prompt_messages
from realtime.agent.text_model import ChatMessage, estimate_tokens

CALL = PastCall(item_id="i3", call_id="c1", name="weather", arguments="{}")
RESULT = CallResult(item_id="i4", call_id="c1", output="sunny")


def user(text: str | None) -> Message:
    return Message(item_id="u", role="user", text=text)


def agent(text: str | None) -> Message:
    return Message(item_id="a", role="assistant", text=text)


def by_words(message: ChatMessage) -> int:
    return len(message.text.split())


def prompt(*items, max_tokens: int = 1000, **options) -> list[tuple[str, str]]:
    options = {"instructions": "Be brief.", "cost": by_words, **options}
    messages = prompt_messages(items, max_tokens=max_tokens, **options)
    return [(one.role, one.text) for one in messages]


def test_the_instructions_come_first_and_then_the_conversation():
    assert prompt(user("Hi."), agent("Hello."), user("How are you?")) == [
        ("system", "Be brief."),
        ("user", "Hi."),
        ("assistant", "Hello."),
        ("user", "How are you?"),
    ]


def test_what_has_no_words_is_left_out():
    # Silence, an answer that nobody heard, a recording without a transcript.
    assert prompt(user(""), agent(" "), user(None), user("Hi.")) == [
        ("system", "Be brief."),
        ("user", "Hi."),
    ]


def test_without_instructions_there_is_no_system_message():
    assert prompt(user("Hi."), instructions="") == [("user", "Hi.")]


def test_system_items_of_the_conversation_are_never_left_out():
    system = Message(item_id="s", role="system", text="It is Sunday.")
    told = prompt(user("one two three"), system, agent("four"), user("five"), max_tokens=6)
    assert told == [("system", "Be brief."), ("system", "It is Sunday."), ("user", "five")]


def test_the_oldest_rounds_go_first_and_whole():
    items = [one for n in range(6) for one in (user(f"q{n} x x"), agent(f"a{n} x x"))]
    told = prompt(*items, user("now"), max_tokens=20)
    assert told[0] == ("system", "Be brief.")
    assert told[1][0] == "user"
    assert told[-1] == ("user", "now")
    assert sum(len(text.split()) for _, text in told) <= 20


def test_the_newest_round_stays_whatever_it_costs():
    long = "word " * 50
    assert prompt(user("old"), agent("old"), user(long), max_tokens=5)[1:] == [("user", long)]


def test_calls_are_kept_with_their_results_for_a_model_that_knows_them():
    items = [user("And in Rome?"), agent("Let me see."), CALL, RESULT, agent("It is sunny.")]
    messages = prompt_messages(items, instructions="", max_tokens=1000, calls_tools=True)
    call = FunctionCall(call_id="c1", name="weather", arguments="{}")
    assert messages == (
        ChatMessage(role="user", text="And in Rome?"),
        ChatMessage(role="assistant", text="Let me see.", calls=(call,)),
        ChatMessage(role="tool", text="sunny", call_id="c1"),
        ChatMessage(role="assistant", text="It is sunny."),
    )


def test_two_calls_of_one_answer_are_one_message():
    other = PastCall(item_id="i5", call_id="c2", name="time", arguments="{}")
    results = [RESULT, CallResult(item_id="i6", call_id="c2", output="noon")]
    items = [user("And in Rome?"), CALL, other, *results]
    messages = prompt_messages(items, instructions="", max_tokens=1000, calls_tools=True)
    assert [len(one.calls) for one in messages] == [0, 2, 0, 0]


def test_a_result_stands_behind_its_call_wherever_it_came():
    items = [user("And in Rome?"), CALL, user("Hello?"), RESULT]
    messages = prompt_messages(items, instructions="", max_tokens=1000, calls_tools=True)
    assert [one.role for one in messages] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("items", [(CALL,), (RESULT,), (RESULT, CALL)])
def test_half_a_call_is_left_out(items):
    assert prompt(user("Hi."), *items, calls_tools=True)[1:] == [("user", "Hi.")]


def test_a_model_without_tools_hears_nothing_of_calls():
    assert prompt(user("Hi."), CALL, RESULT, agent("Sunny."))[1:] == [
        ("user", "Hi."),
        ("assistant", "Sunny."),
    ]


def test_an_estimate_grows_with_the_text_and_knows_wide_scripts():
    english = estimate_tokens(ChatMessage(role="user", text="a" * 350))
    assert english == pytest.approx(106, abs=1)
    chinese = ChatMessage(role="user", text="\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 350)
    assert estimate_tokens(chinese) > 350


ROUNDS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=40)


def conversation(rounds: list[tuple[int, int]]) -> list[Message]:
    items = []
    for n, (n_asked, n_answered) in enumerate(rounds):
        items.append(user(" ".join([f"q{n}"] * n_asked)))
        items.append(agent(" ".join([f"a{n}"] * n_answered)))
    return items


@given(ROUNDS, st.integers(10, 200))
def test_the_budget_holds_unless_one_round_alone_breaks_it(rounds, max_tokens):
    told = prompt(*conversation(rounds), instructions="", max_tokens=max_tokens)
    cost = sum(len(text.split()) for _, text in told)
    assert cost <= max(max_tokens, sum(rounds[-1]))
    assert told[0][0] == "user"
    # What is kept is the end of the conversation, without a hole.
    whole = [(one.role, one.text) for one in conversation(rounds) if one.text]
    assert told == whole[len(whole) - len(told) :]


@given(ROUNDS)
def test_the_first_message_changes_seldom(rounds):
    """The model's cache of a prompt's first rows holds from turn to turn."""
    items = conversation(rounds)
    firsts = [
        prompt(*items[: 2 * n + 2], instructions="", max_tokens=120)[0] for n in range(len(rounds))
    ]
    n_words = sum(map(sum, rounds))
    n_changes = sum(one != other for one, other in pairwise(firsts))
    # At most once for each half budget of new words.
    assert n_changes <= n_words // 60 + 1
