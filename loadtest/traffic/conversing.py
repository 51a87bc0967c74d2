"""A caller of the conversation lane: questions into an open microphone, answers out. Event loop."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from loadtest.measure.playout import end_s
from loadtest.measure.streams import Outcome, StreamRecord
from loadtest.traffic.ears import Tape, arrivals_of
from loadtest.traffic.microphone import Microphone
from loadtest.traffic.recordings import RATE_HZ, Recording
from loadtest.traffic.schedule import Call
from loadtest.traffic.setting import Ongoing, Setting, fault_of
from realtime.client.spoken import ClientError
from realtime.client.talk import TalkClient
from realtime.client.talked import Answer
from realtime.frames import AudioFrame

ANSWER_TIMEOUT_S: Final = 30.0
"""A question without a sound of an answer after so long has failed."""
END_TIMEOUT_S: Final = 180.0
"""So has an answer that goes on for longer."""


class TalkCaller:
    """Opens a conversation, asks questions, and does what its part says.

    A question follows when the answer before has been heard to its end and the caller has thought;
    one who interrupts speaks over the answer instead. `records` has the answers so far.
    """

    def __init__(self, call: Call, setting: Setting) -> None:
        assert setting.recordings is not None, "a scenario with conversations has recordings"
        self.records: list[StreamRecord] = []
        self._draw = random.Random(call.seed)
        self._part = call.part
        self._setting = setting
        self._recordings = setting.recordings
        self._tapes: dict[str, Tape] = {}
        self._stream: Ongoing | None = None

    async def run(self) -> None:
        """The whole visit."""
        try:
            await self._visit()
        except ClientError as error:
            outcome, detail = fault_of(error)
            await self._end("slow" if self._part == "talk_slow_reader" else outcome, detail)
        except TimeoutError:
            await self._end("failed", f"an answer was not over after {END_TIMEOUT_S:g} s")
        except asyncio.CancelledError:
            if self._stream is not None:
                self._stream.end("unfinished", "the run was over")
                self.records.append(self._stream.recorded_unheard(self._setting))
            raise

    async def _visit(self) -> None:
        setting = self._setting
        called_s = setting.clock()
        async with TalkClient(
            setting.target.url,
            rate_hz=RATE_HZ,
            codec="pcm16" if self._part == "talk_slow_reader" else "opus",
            sent_codec=self._recordings.codec,
            is_decoding=False,
            on_frame=self._keep,
            api_key=setting.target.api_key,
            clock=setting.clock,
        ) as client:
            connect_s = setting.clock() - called_s
            lags = setting.health.microphone_lags_s
            microphone = Microphone(client, self._recordings.silence, lags.append)
            async with microphone.open():
                await self._think()
                said_s = await self._say(microphone, self._draw.choice(self._recordings.questions))
                self._asked().connect_s = connect_s
                n_left = self._draw.randint(1, setting.scenario.turns) - 1
                # Whoever interrupts needs an answer to speak over, and one to the interruption.
                n_left = max(n_left, 1) if self._part == "barge_in" else n_left
                await self._exchange(client, microphone, said_s, n_left)

    async def _exchange(
        self, client: TalkClient, microphone: Microphone, said_s: float, n_left: int
    ) -> None:
        """Hear the answer to what was said, and go on until no question is left."""
        while True:
            answer = await self._answer_to(client, said_s)
            if answer is None:
                return
            is_last = n_left == 0
            if is_last and self._part in ("talk_hang_up", "talk_slow_reader"):
                await self._misbehave(client)
                if self._part == "talk_hang_up":
                    return
            if not is_last and self._part == "barge_in":
                said_s = await self._interrupt(client, microphone, answer)
            else:
                await self._hear_out(client, answer)
                if is_last:
                    return
                await self._think()
                recording = self._draw.choice(self._recordings.questions)
                said_s = await self._say(microphone, recording)
            n_left -= 1

    async def _say(self, microphone: Microphone, recording: Recording) -> float:
        """Say it; the answer is waited for from its last sound on, which is given."""
        begun_s = await microphone.say(recording)
        return self._ask(begun_s + recording.end_s)

    def _ask(self, said_s: float) -> float:
        self._stream = Ongoing(kind="answer", part=self._part, asked_s=said_s)
        return said_s

    def _asked(self) -> Ongoing:
        assert self._stream is not None, "a question was asked and its answer is not over"
        return self._stream

    async def _end(self, outcome: Outcome, detail: str = "") -> None:
        """Record the answer that is waited for or heard; a fault may come while there is none."""
        if self._stream is None:
            self._ask(self._setting.clock())
        stream, self._stream = self._asked(), None
        stream.end(outcome, detail)
        self.records.append(await stream.record(self._setting))

    async def _answer_to(self, client: TalkClient, said_s: float) -> Answer | None:
        """The answer to what ended at `said_s`, as soon as it sounds; None if there is none."""
        n_turns = len(client.turns)
        try:
            await client.until(lambda: self._sounding(client, said_s) is not None, ANSWER_TIMEOUT_S)
        except TimeoutError:
            is_heard = len(client.turns) > n_turns or any(
                turn.stopped_s is None or turn.stopped_s >= said_s for turn in client.turns
            )
            what = "no answer came" if is_heard else "the server heard no question"
            await self._end("failed", f"{what} within {ANSWER_TIMEOUT_S:g} s")
            return None
        answer = self._sounding(client, said_s)
        assert answer is not None, "waited for"
        if answer.audio is None or answer.info.id not in self._tapes:
            details = answer.info.status_details
            is_full = details is not None and details.retry_after_s is not None
            why = "silent" if details is None else details.reason
            await self._end("refused" if is_full else "failed", f"{answer.info.status}: {why}")
            return None
        self._asked().tape = self._tapes[answer.info.id]
        self._asked().audio = answer.audio
        return answer

    def _sounding(self, client: TalkClient, said_s: float) -> Answer | None:
        """The latest answer, if it came after `said_s` and sounds, or will not.

        The latest: where a question had a pause, the answer to its first half was dropped.
        """
        answer = client.answers[-1] if client.answers else None
        if answer is None or answer.created_s < said_s:
            return None
        return answer if answer.is_done or answer.info.id in self._tapes else None

    async def _hear_out(self, client: TalkClient, answer: Answer) -> None:
        """Hear it to its end: whoever speaks sooner interrupts it."""
        await client.until(lambda: answer.is_done, END_TIMEOUT_S)
        await self._close(answer)
        assert answer.audio is not None, "it sounded"
        over_s = end_s(arrivals_of(self._tapes[answer.info.id], answer.audio, 0.0))
        await asyncio.sleep(max(0.0, (over_s or 0.0) - self._setting.clock()))

    async def _interrupt(self, client: TalkClient, microphone: Microphone, answer: Answer) -> float:
        """Speak over an answer; gives the end of what was said."""
        await asyncio.sleep(self._draw.uniform(*self._setting.scenario.heard_s))
        recording = self._draw.choice(self._recordings.interruptions)
        begun_s = await microphone.say(recording)
        await client.until(lambda: answer.is_done, END_TIMEOUT_S)
        if answer.cleared_s is not None:
            stream = self._asked()
            stream.cancelled_s = begun_s + recording.onset_s
            stream.silent_s = answer.cleared_s
        await self._close(answer)
        return self._ask(begun_s + recording.end_s)

    async def _misbehave(self, client: TalkClient) -> None:
        await asyncio.sleep(self._draw.uniform(*self._setting.scenario.heard_s))
        if self._part == "talk_hang_up":
            client.inlet.drop()
            await self._end("left")
            return
        client.inlet.pause()
        await asyncio.sleep(self._setting.scenario.stall_s)
        client.inlet.resume()

    async def _close(self, answer: Answer) -> None:
        """Record an answer that is over."""
        if self._part == "talk_slow_reader":
            await self._end("slow")
        elif answer.cleared_s is not None:
            await self._end("cut")
        elif answer.info.status == "completed":
            await self._end("completed")
        else:
            await self._end("failed", answer.info.status)

    async def _think(self) -> None:
        await asyncio.sleep(self._draw.expovariate(1.0 / self._setting.scenario.think_s))

    def _keep(self, answer: Answer, frame: AudioFrame, received_s: float) -> None:
        if answer.cleared_s is None:
            self._tapes.setdefault(answer.info.id, Tape()).add(frame, received_s)
