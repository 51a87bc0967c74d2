"""Items in order, what an agent may know of them, and answers cut to what was heard."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.agent.base import CallResult, PastCall
from realtime.conversation.items import MAX_AUDIO_S, MAX_ITEMS, Conversation, Item, Part, heard_text
from realtime.errors import ProtocolError

TEXT = "The quick brown fox jumps over the lazy dog."


def said(item_id: str, text: str) -> Item:
    return Item(item_id=item_id, parts=[Part(kind="input_text", text=text)])


def answer(item_id: str = "a", text: str = TEXT, seconds: float = 4.4) -> Item:
    """An answer at ten characters a second."""
    marks = [(n / 10, n) for n in range(1, len(text) + 1)]
    part = Part(kind="output_audio", text=text, audio_s=seconds, marks=marks)
    return Item(item_id=item_id, role="assistant", parts=[part])


def spoken(item_id: str, seconds: float, text: str | None = None) -> Item:
    audio = np.zeros(round(seconds * 16_000), np.float32)
    part = Part(kind="input_audio", text=text, audio=audio, audio_s=seconds)
    return Item(item_id=item_id, parts=[part])


def ids(conversation: Conversation) -> list[str]:
    return [item.item_id for item in conversation.items]


def test_items_go_to_the_end_to_the_head_or_behind_another():
    conversation = Conversation()
    assert conversation.add(said("b", "")) == (None, [])
    assert conversation.add(said("d", "")) == ("b", [])
    assert conversation.add(said("a", ""), "root") == (None, [])
    assert conversation.add(said("c", ""), "b") == ("b", [])
    assert ids(conversation) == ["a", "b", "c", "d"]
    assert conversation.last_id == "d"


def test_a_taken_id_and_an_unknown_place_are_refused():
    conversation = Conversation()
    conversation.add(said("a", ""))
    for taken in ("a", "root"):
        with pytest.raises(ProtocolError) as caught:
            conversation.add(said(taken, ""))
        assert (caught.value.code, caught.value.param) == ("item_id_taken", "item.id")
    with pytest.raises(ProtocolError) as caught:
        conversation.add(said("b", ""), "nobody")
    assert caught.value.param == "previous_item_id"
    assert ids(conversation) == ["a"]


def test_unknown_items_are_refused_by_field():
    conversation = Conversation()
    for call, code in [
        (lambda: conversation.delete("x"), "item_delete_invalid_item_id"),
        (lambda: conversation.get("x", "item_retrieve_invalid_item_id"), None),
        (lambda: conversation.truncate("x", 0, 1.0), "item_truncate_invalid_item_id"),
    ]:
        with pytest.raises(ProtocolError) as caught:
            call()
        assert caught.value.param == "item_id"
        assert caught.value.code == code or code is None


@pytest.mark.parametrize(
    ("heard_s", "text"),
    [
        (0.0, ""),
        (0.1, ""),
        (0.2, "The"),
        (0.35, "The"),
        (0.7, "The quick"),
        (0.6, "The"),
        (2.0, "The quick brown fox"),
        (4.4, TEXT),
        (9.0, TEXT),
    ],
)
def test_words_heard(heard_s, text):
    assert heard_text(TEXT, answer().parts[0].marks, heard_s) == text


def test_between_marks_the_voice_goes_on_evenly():
    assert heard_text("one two three four", [(2.0, 18)], 1.0) == "one two"
    assert heard_text("one two", [], 1.0) == ""


def test_truncation_keeps_what_was_heard_in_the_context():
    conversation = Conversation()
    conversation.add(said("u", "Say it."))
    conversation.add(answer())
    assert conversation.truncate("a", 0, 2.0) == 2.0
    assert [one.text for one in conversation.context()] == ["Say it.", "The quick brown fox"]
    assert conversation.get("a").status == "incomplete"
    assert conversation.truncate("a", 0, 3.0) == 2.0, "what is cut does not come back"


def remembered(conversation: Conversation) -> list[object]:
    """Memory of each message that an agent may know."""
    return [getattr(one, "memory", None) for one in conversation.context()]


@pytest.fixture
def remembering() -> Conversation:
    """Two questions, and answers that their agent remembers."""
    conversation = Conversation()
    for n, item in enumerate((said("q", "?"), answer("a"), said("r", "?"), answer("b"))):
        item.memory = None if item.role == "user" else n
        conversation.add(item)
    return conversation


def test_what_an_agent_remembers_comes_back_with_its_answers(remembering):
    remembering.add(said("s", "?"))
    assert remembered(remembering) == [None, 1, None, 3, None]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda one: one.truncate("b", 0, 2.0), [None, 1, None, None]),
        (lambda one: one.truncate("a", 0, 2.0), [None, None, None, None]),
        (lambda one: one.delete("r"), [None, 1, None]),
        (lambda one: one.delete("q"), [None, None, None]),
        (lambda one: one.add(said("x", "!"), "q"), [None, None, None, None, None]),
        (lambda one: one.note_heard("b", 2.0), [None, 1, None, None]),
        (lambda one: one.truncate("b", 0, 9.0), [None, 1, None, 3]),
        (lambda one: one.note_heard("b", 9.0), [None, 1, None, 3]),
    ],
)
def test_what_was_changed_is_not_remembered_as_it_was(remembering, change, left):
    """Nor what came after it: an agent would go on from what the user never heard."""
    change(remembering)
    assert remembered(remembering) == left


def test_truncation_past_the_end_is_clamped_and_changes_nothing():
    conversation = Conversation()
    conversation.add(answer())
    assert conversation.truncate("a", 0, 99.0) == 4.4
    assert conversation.get("a").status == "completed"
    assert conversation.context()[0].text == TEXT


@pytest.mark.parametrize("has_part", [True, False])
def test_an_answer_of_which_nothing_was_heard_is_not_in_the_context(has_part):
    conversation = Conversation()
    conversation.add(
        answer() if has_part else Item(item_id="a", role="assistant", status="in_progress")
    )
    assert conversation.truncate("a", 0, 0.0) == 0.0
    assert conversation.context() == ()


def test_only_answers_and_only_their_parts_can_be_truncated():
    conversation = Conversation()
    conversation.add(said("u", "Hello."))
    conversation.add(answer())
    with pytest.raises(ProtocolError, match="only answers"):
        conversation.truncate("u", 0, 1.0)
    with pytest.raises(ProtocolError) as caught:
        conversation.truncate("a", 1, 1.0)
    assert caught.value.param == "content_index"


UNHEARD = answer("unheard", text="")
RESULT = Item(item_id="r", kind="function_call_output", call_id="c", output="42")


@pytest.mark.parametrize(
    ("items", "is_silent"),
    [
        ([], False),
        ([said("q", "Why?")], False),
        ([said("s", "")], True),
        ([said("s", " \n\t ")], True),
        ([said("q", "Why?"), answer(), said("s", " ")], True),
        ([said("q", "Why?"), answer(), said("s", "")], True),
        ([answer(), said("s", ""), said("t", "")], True),
        ([said("s", ""), answer()], False),
        # A cough behind a question that has no answer, or none that was heard.
        ([said("q", "Why?"), said("s", "")], False),
        ([answer(), said("q", "Why?"), said("s", ""), said("t", "")], False),
        ([said("q", "Why?"), UNHEARD, said("s", "")], False),
        ([spoken("q", 1.0), said("s", "")], False),
        ([said("q", "Why?"), RESULT, said("s", "")], False),
    ],
)
def test_silence_is_told_from_a_question_that_is_open(items, is_silent):
    conversation = Conversation()
    for item in items:
        conversation.add(item)
    assert conversation.is_last_silent == is_silent


def test_calls_and_results_are_context():
    conversation = Conversation()
    call = Item(item_id="c", kind="function_call", call_id="k", name="f", arguments="{}")
    conversation.add(call)
    conversation.add(Item(item_id="r", kind="function_call_output", call_id="k", output="1"))
    assert conversation.context() == (
        PastCall(item_id="c", call_id="k", name="f", arguments="{}"),
        CallResult(item_id="r", call_id="k", output="1"),
    )


def test_user_audio_without_transcript_is_context_and_old_audio_is_forgotten():
    conversation = Conversation()
    for number in range(5):
        conversation.add(spoken(str(number), MAX_AUDIO_S / 2, text=f"turn {number}"))
    kept = [message.audio is not None for message in conversation.context()]
    assert kept == [False, False, False, True, True]
    assert [message.text for message in conversation.context()] == [f"turn {n}" for n in range(5)]
    conversation.add(spoken("long", 2 * MAX_AUDIO_S))
    assert [message.audio is not None for message in conversation.context()] == [*[False] * 5, True]


def test_a_full_conversation_loses_its_oldest_item():
    conversation = Conversation()
    for number in range(MAX_ITEMS):
        assert conversation.add(said(str(number), "x"))[1] == []
    assert conversation.add(said("new", "x"))[1] == ["0"]
    assert conversation.add(said("first", "x"), "root")[1] == ["1"]
    assert len(conversation.items) == MAX_ITEMS


@given(
    st.text(alphabet="ab c", max_size=40),
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 40)), max_size=8),
    st.floats(0, 6),
    st.floats(0, 6),
)
def test_more_heard_is_never_less_text(text, raw_marks, one_s, other_s):
    marks = sorted((s, min(n, len(text))) for s, n in raw_marks)
    top = 0
    for idx, (mark_s, n) in enumerate(marks):
        top = max(top, n)
        marks[idx] = (mark_s, top)
    less, more = (heard_text(text, marks, s) for s in sorted((one_s, other_s)))
    assert text.startswith(more)
    assert more.startswith(less)
