"""The turn machine: by tables of what must happen, and by any order of events at all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.conversation.turns import (
    TRANSCRIPT_PATIENCE_S,
    RefuseCancel,
    RefuseCreate,
    ResumeAnswer,
    StartAnswer,
    StopAnswer,
    StopPlayout,
    TakeSilence,
    TurnMachine,
    TurnSettings,
)

SPEECH, CANCEL, CREATE = ("speech",), ("cancel",), ("create",)
TURN_1, TURN_2 = ("turn", 1), ("turn", 2)
WORDS_1, EMPTY_1 = ("transcript", 1, False), ("transcript", 1, True)
WORDS_2, EMPTY_2 = ("transcript", 2, False), ("transcript", 2, True)
HEARD_1, ENDED_1, SILENT_1 = ("heard", 1), ("ended", 1), ("silent", 1)
OVER_1 = (ENDED_1, SILENT_1)
BY_TURN_1, BY_TURN_2 = (StartAnswer(number=n, cause="turn") for n in (1, 2))
BY_CLIENT_1, BY_CLIENT_2 = (StartAnswer(number=n, cause="client") for n in (1, 2))
BARGED_1 = StopAnswer(number=1, reason="turn_detected")
CANCELLED_1 = StopAnswer(number=1, reason="client_cancelled")
BARGED_2 = StopAnswer(number=2, reason="turn_detected")
CANCELLED_2 = StopAnswer(number=2, reason="client_cancelled")
HUSH_1, HUSH_2 = StopPlayout(number=1), StopPlayout(number=2)
RESUME_1, RESUME_1_AS_3 = ResumeAnswer(number=2, of=1), ResumeAnswer(number=3, of=1)
RESUME_2_AS_3 = ResumeAnswer(number=3, of=2)


def send(machine: TurnMachine, event: tuple, now_s: float = 0.0) -> list:
    match event:
        case ("speech",):
            return machine.on_speech_started(now_s)
        case ("dropped" | "committed" as how,):
            return machine.on_committed() if how == "committed" else machine.on_speech_dropped()
        case ("turn", turn):
            return machine.on_turn_ended(turn, now_s)
        case ("transcript", turn, is_empty):
            return machine.on_transcript(turn, is_empty=is_empty)
        case ("create",):
            return machine.on_create()
        case ("cancel",):
            return machine.on_cancel(None)
        case ("cancel", number):
            return machine.on_cancel(number)
        case ("ended", number):
            return machine.on_answer_ended(number, now_s)
        case ("heard", number):
            return machine.on_playout_started(number)
        case ("silent", number):
            return machine.on_playout_ended(number, now_s)
        case ("tick",):
            return machine.on_tick(now_s)
    raise AssertionError(event)


def play(machine: TurnMachine, events: list[tuple]) -> list:
    return [action for event in events for action in send(machine, event)]


# For agents that answer the transcript.
BY_TRANSCRIPT = {
    "a turn is answered once its transcript is there": ([SPEECH, TURN_1, WORDS_1], [BY_TURN_1]),
    "a cough is not answered": ([SPEECH, TURN_1, EMPTY_1], []),
    "a transcript without a turn starts nothing": ([WORDS_1], []),
    "going on before the answer leaves one answer to both": (
        [SPEECH, TURN_1, SPEECH, WORDS_1, TURN_2, WORDS_2],
        [BY_TURN_1],
    ),
    "a cough after a question does not lose the answer": (
        [SPEECH, TURN_1, SPEECH, TURN_2, EMPTY_2],
        [BY_TURN_1],
    ),
    "a cough before the first sound does not lose the answer": (
        [SPEECH, TURN_1, WORDS_1, SPEECH, TURN_2, EMPTY_2],
        [BY_TURN_1, BARGED_1, BY_TURN_2],
    ),
    "a cough while the agent is heard stops it, and it goes on": (
        [SPEECH, TURN_1, WORDS_1, HEARD_1, SPEECH, TURN_2, EMPTY_2],
        [BY_TURN_1, HUSH_1, BARGED_1, RESUME_1],
    ),
    "a cough while the end of a complete answer is heard": (
        [SPEECH, TURN_1, WORDS_1, HEARD_1, ENDED_1, SPEECH, TURN_2, EMPTY_2],
        [BY_TURN_1, HUSH_1, RESUME_1],
    ),
    "words while the agent is heard stop it for good": (
        [SPEECH, TURN_1, WORDS_1, HEARD_1, SPEECH, TURN_2, WORDS_2],
        [BY_TURN_1, HUSH_1, BARGED_1, BY_TURN_2],
    ),
    "speech that is dropped while the agent is heard": (
        [CREATE, HEARD_1, SPEECH, ("dropped",)],
        [BY_CLIENT_1, HUSH_1, BARGED_1, RESUME_1],
    ),
    "a turn made by hand is the client's to answer": (
        [CREATE, HEARD_1, SPEECH, ("committed",)],
        [BY_CLIENT_1, HUSH_1, BARGED_1],
    ),
    "a cough, and another before the answer that goes on is heard": (
        [CREATE, HEARD_1, SPEECH, TURN_1, EMPTY_1, SPEECH, TURN_2, EMPTY_2],
        [BY_CLIENT_1, HUSH_1, BARGED_1, RESUME_1, BARGED_2, RESUME_1_AS_3],
    ),
    "a cough, and another while the rest is heard": (
        [CREATE, HEARD_1, SPEECH, TURN_1, EMPTY_1, ("heard", 2), SPEECH, TURN_2, EMPTY_2],
        [BY_CLIENT_1, HUSH_1, BARGED_1, RESUME_1, HUSH_2, BARGED_2, RESUME_2_AS_3],
    ),
    "a cough, and then a question": (
        [CREATE, HEARD_1, SPEECH, TURN_1, SPEECH, EMPTY_1, TURN_2, WORDS_2],
        [BY_CLIENT_1, HUSH_1, BARGED_1, BY_TURN_2],
    ),
    "who cancels while speaking wants no rest": (
        [CREATE, HEARD_1, SPEECH, CANCEL, TURN_1, EMPTY_1],
        [BY_CLIENT_1, HUSH_1, BARGED_1, RefuseCancel()],
    ),
    "who cancels wants no rest": (
        [CREATE, HEARD_1, SPEECH, TURN_1, CANCEL, EMPTY_1],
        [BY_CLIENT_1, HUSH_1, BARGED_1, BY_CLIENT_2, CANCELLED_2],
    ),
    "who asks for an answer wants no rest": (
        [CREATE, HEARD_1, SPEECH, TURN_1, CREATE, EMPTY_1],
        [BY_CLIENT_1, HUSH_1, BARGED_1, BY_CLIENT_2],
    ),
    "cancelling an answer that waits drops it, and says so": (
        [SPEECH, TURN_1, CANCEL, WORDS_1],
        [BY_CLIENT_1, CANCELLED_1],
    ),
    "a cancelled question is not owed": (
        [SPEECH, TURN_1, SPEECH, TURN_2, CANCEL, EMPTY_2],
        [BY_CLIENT_1, CANCELLED_1],
    ),
    "a question is answered where the speech that followed is dropped": (
        [SPEECH, TURN_1, SPEECH, ("dropped",)],
        [BY_TURN_1],
    ),
    "asking stands for the answer that waits": (
        [SPEECH, TURN_1, CREATE, WORDS_1],
        [BY_CLIENT_1],
    ),
}
# For any agent.
BY_AUDIO = {
    "a turn is answered at once": ([SPEECH, TURN_1], [BY_TURN_1]),
    "speech before the first sound": ([SPEECH, TURN_1, SPEECH], [BY_TURN_1, BARGED_1]),
    "barge-in stops the answer and the playout": (
        [CREATE, HEARD_1, SPEECH],
        [BY_CLIENT_1, HUSH_1, BARGED_1],
    ),
    "barge-in stops what is still heard of a complete answer": (
        [CREATE, HEARD_1, ENDED_1, SPEECH],
        [BY_CLIENT_1, HUSH_1],
    ),
    "what has been heard to its end cannot be stopped": (
        [CREATE, HEARD_1, ENDED_1, SILENT_1, SPEECH],
        [BY_CLIENT_1],
    ),
    "a second create is refused": ([CREATE, CREATE], [BY_CLIENT_1, RefuseCreate(active_number=1)]),
    "create after the end": ([CREATE, ENDED_1, CREATE], [BY_CLIENT_1, BY_CLIENT_2]),
    "create right after cancel": (
        [CREATE, CANCEL, CREATE],
        [BY_CLIENT_1, CANCELLED_1, BY_CLIENT_2],
    ),
    "cancel with nothing to cancel": ([CANCEL], [RefuseCancel()]),
    "cancel twice": ([CREATE, CANCEL, CANCEL], [BY_CLIENT_1, CANCELLED_1, RefuseCancel()]),
    "cancel by number": ([CREATE, ("cancel", 1)], [BY_CLIENT_1, CANCELLED_1]),
    "cancel by another number": ([CREATE, ("cancel", 7)], [BY_CLIENT_1, RefuseCancel()]),
    "cancel silences what is heard": (
        [CREATE, HEARD_1, CANCEL],
        [BY_CLIENT_1, HUSH_1, CANCELLED_1],
    ),
    "the end of a stopped answer is no news": (
        [CREATE, CANCEL, CREATE, ENDED_1, CREATE],
        [BY_CLIENT_1, CANCELLED_1, BY_CLIENT_2, RefuseCreate(active_number=2)],
    ),
    "late sound of a stopped answer is not heard": (
        [CREATE, CANCEL, HEARD_1, SPEECH],
        [BY_CLIENT_1, CANCELLED_1],
    ),
    "speech that is dropped is no turn": ([SPEECH, ("dropped",), CREATE], [BY_CLIENT_1]),
}
POLITE = TurnSettings(interrupts=False)
WITHOUT_INTERRUPTION = {
    "speech stops nothing; its turn is answered after": (
        [CREATE, HEARD_1, SPEECH, TURN_1, *OVER_1],
        [BY_CLIENT_1, BY_TURN_2],
    ),
    "a cancel drops what is queued": (
        [CREATE, SPEECH, TURN_1, CANCEL],
        [BY_CLIENT_1, CANCELLED_1],
    ),
}


@pytest.mark.parametrize("name", BY_TRANSCRIPT)
def test_agents_that_answer_the_transcript(name):
    events, expected = BY_TRANSCRIPT[name]
    assert play(TurnMachine(TurnSettings(), needs_transcript=True), events) == expected


@pytest.mark.parametrize("name", BY_AUDIO)
def test_agents_that_answer_the_audio(name):
    events, expected = BY_AUDIO[name]
    assert play(TurnMachine(TurnSettings(), needs_transcript=False), events) == expected


@pytest.mark.parametrize("name", WITHOUT_INTERRUPTION)
def test_sessions_without_interruption(name):
    events, expected = WITHOUT_INTERRUPTION[name]
    assert play(TurnMachine(POLITE, needs_transcript=False), events) == expected


# For agents that answer the transcript, in sessions without interruption: what is said while the
# first answer is heard.
SAID_MEANWHILE = {
    "its end is still heard": ([TURN_1, WORDS_1, ENDED_1], []),
    "it is over for the client first": ([TURN_1, WORDS_1, SILENT_1, ENDED_1], [BY_TURN_2]),
    "its words come early": ([TURN_1, WORDS_1, *OVER_1], [BY_TURN_2]),
    "its words come late": ([TURN_1, *OVER_1, WORDS_1], [BY_TURN_2]),
    "a cough": ([TURN_1, EMPTY_1, *OVER_1], []),
    "a cough, told late": ([TURN_1, *OVER_1, EMPTY_1], []),
    "two turns have one answer": ([TURN_1, WORDS_1, TURN_2, WORDS_2, *OVER_1], [BY_TURN_2]),
    "two turns, the words of the first come last": (
        [TURN_1, TURN_2, WORDS_2, *OVER_1, WORDS_1],
        [BY_TURN_2],
    ),
    "a cough after a question does not lose it": (
        [TURN_1, WORDS_1, TURN_2, EMPTY_2, *OVER_1],
        [BY_TURN_2],
    ),
    "a cough before a question does not lose it": (
        [TURN_1, TURN_2, WORDS_2, EMPTY_1, *OVER_1],
        [BY_TURN_2],
    ),
    "a cough that is known after the end": (
        [TURN_1, WORDS_1, TURN_2, *OVER_1, EMPTY_2],
        [BY_TURN_2],
    ),
    "two coughs": ([TURN_1, TURN_2, EMPTY_2, *OVER_1, EMPTY_1], []),
    "a cancel while the end of the answer is heard": (
        [TURN_1, WORDS_1, ENDED_1, CANCEL, SILENT_1],
        [BY_CLIENT_2, HUSH_1, CANCELLED_2],
    ),
    "a cancel drops all of them": (
        [TURN_1, WORDS_1, TURN_2, CANCEL, WORDS_2],
        [HUSH_1, CANCELLED_1],
    ),
}


@pytest.mark.parametrize("name", SAID_MEANWHILE)
def test_turns_during_an_answer_that_may_not_be_interrupted(name):
    events, expected = SAID_MEANWHILE[name]
    machine = TurnMachine(POLITE, needs_transcript=True)
    assert play(machine, [CREATE, HEARD_1]) == [BY_CLIENT_1]
    assert play(machine, events) == expected


def test_a_second_question_before_the_first_is_known_leaves_one_answer_to_both():
    """The second turn used to take the place of the first: if it was a cough, both were lost."""
    machine = TurnMachine(POLITE, needs_transcript=True)
    assert play(machine, [SPEECH, TURN_1, SPEECH, TURN_2, WORDS_1]) == []
    assert play(machine, [EMPTY_2]) == [BY_TURN_1]


def test_words_that_never_come_do_not_lose_the_others():
    machine = TurnMachine(POLITE, needs_transcript=True)
    assert play(machine, [TURN_1, TURN_2, WORDS_2]) == []
    assert send(machine, ("tick",), TRANSCRIPT_PATIENCE_S) == [BY_TURN_1]


def test_a_session_that_stops_answers_nothing_more():
    machine = TurnMachine(TurnSettings(), needs_transcript=True)
    play(machine, [SPEECH, TURN_1])
    machine.settings = TurnSettings(creates=False)
    assert play(machine, [WORDS_1]) == []
    assert machine.is_idle


def test_without_create_response_nothing_starts_by_itself():
    machine = TurnMachine(TurnSettings(creates=False), needs_transcript=True)
    assert play(machine, [SPEECH, TURN_1, WORDS_1]) == []
    assert play(machine, [CREATE]) == [BY_CLIENT_1]


def test_a_transcript_that_never_comes_is_given_up():
    machine = TurnMachine(TurnSettings(), needs_transcript=True)
    send(machine, TURN_1, 10.0)
    assert machine.on_tick(10.0 + TRANSCRIPT_PATIENCE_S - 0.1) == []
    assert machine.on_tick(10.0 + TRANSCRIPT_PATIENCE_S) == []
    assert machine.is_idle


def test_silence_after_an_answer_is_answered_once():
    machine = TurnMachine(TurnSettings(idle_s=5.0), needs_transcript=False)
    assert machine.on_tick(100.0) == [], "nothing was said yet"
    play(machine, [CREATE, HEARD_1, ENDED_1])
    assert machine.on_tick(200.0) == [], "it is still heard"
    send(machine, SILENT_1, 200.0)
    assert machine.on_tick(204.9) == []
    assert machine.on_tick(205.0) == [TakeSilence(), StartAnswer(number=2, cause="idle")]
    assert machine.on_tick(300.0) == []


def test_speech_ends_the_wait_for_silence():
    machine = TurnMachine(TurnSettings(idle_s=5.0), needs_transcript=True)
    play(machine, [CREATE, ENDED_1])
    send(machine, SPEECH, 4.0)
    send(machine, ("dropped",), 4.5)
    assert machine.on_tick(50.0) == []


NUMBERS = st.integers(1, 4)
EVENTS = st.one_of(
    st.sampled_from([SPEECH, ("dropped",), ("committed",), CREATE, CANCEL, ("tick",)]),
    st.tuples(st.sampled_from(["turn", "cancel", "ended", "heard", "silent"]), NUMBERS),
    st.tuples(st.just("transcript"), NUMBERS, st.booleans()),
)
SETTINGS = st.builds(
    TurnSettings,
    creates=st.booleans(),
    interrupts=st.booleans(),
    idle_s=st.sampled_from([None, 3.0]),
)


class Model:
    """What a session makes of the actions, with its own idea of what must hold."""

    def __init__(self) -> None:
        self.active: int | None = None
        self.n_started = 0

    def perform(self, event: tuple, actions: list) -> None:
        for action in actions:
            match action:
                case StartAnswer(number=number) | ResumeAnswer(number=number):
                    assert self.active is None, "two answers at once"
                    assert number == self.n_started + 1, "numbers name one answer each"
                    self.active = self.n_started = number
                case StopAnswer(number=number):
                    assert number == self.active, "only the answer being made can be stopped"
                    self.active = None
                case StopPlayout(number=number):
                    assert number <= self.n_started
                case RefuseCreate(active_number=number):
                    assert event == CREATE
                    assert number == self.active
                case RefuseCancel():
                    assert event[0] == "cancel"
        if event == CANCEL:
            assert self.active is None, "a cancel was lost"
            assert actions, "a cancel is always answered"
        if event == CREATE:
            assert self.active is not None


@settings(max_examples=200, deadline=None)
@given(SETTINGS, st.booleans(), st.lists(EVENTS, max_size=60))
def test_any_order_of_events(turn_settings, needs_transcript, events):
    machine = TurnMachine(turn_settings, needs_transcript=needs_transcript)
    model = Model()
    for now_s, event in enumerate(events):
        before = machine.active
        assert before == model.active
        actions = send(machine, event, float(now_s))
        if event[0] == "ended" and event[1] == before:
            model.active = None
        model.perform(event, actions)
        assert machine.active == model.active
        if turn_settings.interrupts and event == SPEECH:
            assert machine.active is None, "speech leaves no answer going"
            assert machine.heard is None

    # Whatever has happened: once all that was begun ends, nothing is stuck.
    now_s = float(len(events))
    machine.settings = TurnSettings()
    send(machine, ("dropped",), now_s)
    while machine.active is not None or not machine.is_idle:
        now_s += TRANSCRIPT_PATIENCE_S
        before = (machine.active, machine.heard, now_s)
        for number in filter(None, (machine.active, machine.heard)):
            send(machine, ("ended", number), now_s)
            send(machine, ("silent", number), now_s)
        machine.settings = TurnSettings()
        send(machine, ("tick",), now_s)
        assert now_s < 1e6, before
    assert send(machine, SPEECH, now_s) == []
    actions = send(machine, ("turn", 99), now_s) + send(machine, ("transcript", 99, False), now_s)
    assert [type(action) for action in actions] == [StartAnswer]


@settings(max_examples=200, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.one_of(
            st.sampled_from(["turn", "playing", "ended", "silent"]),
            st.tuples(st.integers(0, 3), st.booleans()),
        ),
        max_size=40,
    ),
)
def test_nothing_that_was_said_stays_unanswered(interrupts, steps):
    """Whatever comes in whatever order: every turn with words is followed by an answer."""
    machine = TurnMachine(TurnSettings(interrupts=interrupts), needs_transcript=True)
    open_turns: list[int] = []
    unanswered: set[int] = set()
    n_turns = 0

    def take(actions: list) -> None:
        if any(isinstance(action, StartAnswer) for action in actions):
            unanswered.clear()

    for step in steps:
        match step:
            case "turn":
                n_turns += 1
                take(send(machine, SPEECH))
                open_turns.append(n_turns)
                unanswered.add(n_turns)
                take(send(machine, ("turn", n_turns)))
            case "playing" if machine.active is not None:
                take(send(machine, ("heard", machine.active)))
            case "ended" if machine.active is not None:
                take(send(machine, ("ended", machine.active)))
            case "silent" if machine.heard is not None:
                take(send(machine, ("silent", machine.heard)))
            case (place, is_empty) if open_turns:
                turn = open_turns.pop(place % len(open_turns))
                if is_empty:
                    unanswered.discard(turn)
                take(send(machine, ("transcript", turn, is_empty)))
    for turn in open_turns:
        take(send(machine, ("transcript", turn, False)))
    while machine.active is not None or machine.heard is not None:
        take(send(machine, ("ended", machine.active)))
        take(send(machine, ("silent", machine.heard)))
    assert not unanswered


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["cough", "playing", "ended", "tick"]), max_size=30))
def test_what_coughs_break_off_is_said_to_its_end(steps):
    """However often: an answer that was stopped by nothing goes on once all is quiet."""
    machine = TurnMachine(TurnSettings(), needs_transcript=True)
    play(machine, [CREATE, HEARD_1])
    for turn, step in enumerate(steps):
        match step:
            case "cough":
                actions = play(machine, [SPEECH, ("turn", turn), ("transcript", turn, True)])
                assert isinstance(actions[-1], ResumeAnswer)
            case "playing":
                send(machine, ("heard", machine.active))
            case "ended":
                send(machine, ("ended", machine.active))
                return
            case "tick":
                send(machine, ("tick",))
        assert machine.active is not None
