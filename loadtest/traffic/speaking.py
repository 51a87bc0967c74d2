"""A caller of the speech lane: one text, spoken. Event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Final

from loadtest.measure.streams import StreamRecord
from loadtest.traffic.schedule import Call
from loadtest.traffic.setting import Ongoing, Setting, fault_of
from loadtest.traffic.texts import texts
from realtime.client.speech import ClientError, Speech, SpeechClient
from realtime.events import OutputPatch, SessionPatch

N_LONG: Final = 4
"""So many of the longest texts are for callers who do something in the middle."""
SLOW_RATE_HZ: Final = 48_000
"""PCM16 at this rate is what a slow reader asks for: most bytes for each second of speech."""


class SpeechCaller:
    """Opens a socket, has a text spoken, and does what its part says.

    `records` has the stream once `run` is over, cancelled or not.
    """

    def __init__(self, call: Call, setting: Setting) -> None:
        draw = random.Random(call.seed)
        self.records: list[StreamRecord] = []
        self._part = call.part
        self._setting = setting
        acts = call.part in ("cancel", "hang_up", "slow_reader")
        self._text = draw.choice(texts()[-N_LONG:] if acts else texts())
        self._acts_after_s = draw.uniform(*setting.scenario.heard_s) if acts else None
        self._sounds = asyncio.Event()
        self._stream = Ongoing(kind="speech", part=call.part, asked_s=setting.clock())

    async def run(self) -> None:
        """The whole visit."""
        stream = self._stream
        try:
            await self._visit(stream)
        except ClientError as error:
            outcome, detail = fault_of(error)
            stream.end("slow" if self._part == "slow_reader" else outcome, detail)
        except asyncio.CancelledError:
            stream.end("unfinished", "the run was over")
            self.records.append(stream.recorded_unheard(self._setting))
            raise
        self.records.append(await stream.record(self._setting))

    async def _visit(self, stream: Ongoing) -> None:
        clock = self._setting.clock
        async with SpeechClient(
            self._setting.target.url,
            session=self._patch(),
            is_decoding=False,
            api_key=self._setting.target.api_key,
            clock=clock,
        ) as client:
            stream.connect_s = clock() - stream.asked_s
            speech = await client.speak(self._words() if self._part == "streamed" else self._text)
            act = asyncio.create_task(self._act(client, speech, stream))
            try:
                await self._listen(speech, stream)
            finally:
                act.cancel()
                with contextlib.suppress(asyncio.CancelledError, ClientError):
                    await act
            stream.done_s = clock()
            stream.end("slow" if self._part == "slow_reader" else "completed")

    async def _listen(self, speech: Speech, stream: Ongoing) -> None:
        try:
            async for frame, received_s in speech.arrivals():
                stream.tape.add(frame, received_s)
                self._sounds.set()
        finally:
            stream.audio = speech.audio
            stream.asked_s = speech.sent_s or stream.asked_s
        if speech.result.response.status == "incomplete":
            stream.end("failed", "the response was cut by a limit")
        if speech.result.response.status == "cancelled":
            stream.silent_s = stream.tape.frames[-1][1] if stream.tape.frames else None
            stream.end("cut")

    async def _act(self, client: SpeechClient, speech: Speech, stream: Ongoing) -> None:
        """What the part does once some has been heard."""
        if self._acts_after_s is None:
            return
        await self._sounds.wait()
        await asyncio.sleep(self._acts_after_s)
        if self._part == "cancel":
            stream.cancelled_s = self._setting.clock()
            await speech.cancel()
        elif self._part == "hang_up":
            stream.end("left")
            client.inlet.drop()
        else:
            client.inlet.pause()
            await asyncio.sleep(self._setting.scenario.stall_s)
            client.inlet.resume()

    def _patch(self) -> SessionPatch | None:
        model, voice = self._setting.model, self._setting.voice
        if self._part == "slow_reader":
            output = OutputPatch(codec="pcm16", sample_rate_hz=SLOW_RATE_HZ)
            return SessionPatch(model=model, voice=voice, output=output)
        return SessionPatch(model=model, voice=voice) if model or voice else None

    async def _words(self) -> AsyncIterator[str]:
        for word in self._text.split(" "):
            yield word + " "
            await asyncio.sleep(self._setting.scenario.word_s)
