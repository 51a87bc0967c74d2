"""One response's audio on its way out: coded in a worker, numbered, sent, and its events.

Every lane's responses use this. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from engine.types import Pcm
from realtime.audio.coder import AudioCoder, Packet
from realtime.events import OutputAudioDone, OutputAudioStarted, OutputInfo
from realtime.frames import AudioFrame
from realtime.metrics import GatewayMetrics
from realtime.outlet import Outlet
from realtime.playout import PlayoutClock
from realtime.protocol import PACKET_MS
from realtime.speech.errors import ResponseFailedError
from realtime.workers import Workers

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class ResponseAudio:
    """Audio of one response.

    Args:
        response_id: of the response.
        number: of the response, in its session.
        model_rate_hz: sample rate of what comes in.
        output: the form that goes out.
        outlet: where events and frames go.
        workers: where audio is coded.
        metrics: of the app.
        clock: monotonic seconds.
        playout: told of all that is sent.
        max_s: what comes in after so many seconds is cut.
        asked_s: when the client began to wait; None: not yet (`asked_s` is set later).
        on_first_sent: called when the socket has taken the first frame.
    """

    def __init__(
        self,
        *,
        response_id: str,
        number: int,
        model_rate_hz: int,
        output: OutputInfo,
        outlet: Outlet,
        workers: Workers,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        playout: PlayoutClock,
        max_s: float,
        asked_s: float | None = None,
        on_first_sent: Callable[[], None] | None = None,
    ) -> None:
        self._response_id = response_id
        self._number = number
        self._model_rate_hz = model_rate_hz
        self._output = output
        self._is_heard = output.pace == "playback"
        self._outlet = outlet
        self._workers = workers
        self._metrics = metrics
        self._clock = clock
        self._playout = playout
        self._on_first_sent = on_first_sent
        self._samples_left = round(max_s * model_rate_hz)
        self._n_taken = 0
        self._coder: AudioCoder | None = None
        self._n_packets = 0
        self._n_unsent = 0
        self._all_sent = asyncio.Event()
        self.asked_s = asked_s
        self.ttfa_s: float | None = None

    @property
    def is_cut(self) -> bool:
        """Whether the limit of seconds is reached: nothing more is taken."""
        return self._samples_left == 0

    @property
    def is_all_sent(self) -> bool:
        """Whether the socket has taken everything."""
        return not self._n_unsent

    @property
    def taken_s(self) -> float:
        """Seconds of audio that have come in."""
        return self._n_taken / self._model_rate_hz

    @property
    def n_samples(self) -> int:
        """Samples that the client can decode from what was sent, without padding."""
        return self._coder.n_decodable(self._n_packets) if self._coder else 0

    @property
    def seconds(self) -> float:
        """The same in seconds."""
        return self.n_samples / self._output.sample_rate_hz

    async def push(self, pcm: Pcm) -> None:
        """Send more, once the client has room for it.

        Raises:
            ResponseFailedError: it cannot be coded.
        """
        await self._outlet.queue.wait_room()
        pcm = pcm[: self._samples_left]
        self._samples_left -= len(pcm)
        self._n_taken += len(pcm)
        if self._coder is None:
            self._coder = await self._code(AudioCoder, self._model_rate_hz, self._output)
            self._announce(self._coder)
        self._put(await self._code(self._coder.push, pcm))

    async def finish(self) -> None:
        """Send the rest. Raises: `ResponseFailedError`."""
        if self._coder is not None:
            self._put(await self._code(self._coder.finish))

    async def wait_sent(self) -> None:
        """Wait until the socket has taken everything."""
        while self._n_unsent:
            self._all_sent.clear()
            await self._all_sent.wait()

    def drop_unsent(self) -> None:
        """Forget what the socket has not taken."""
        n_dropped = self._outlet.drop_audio(self._number)
        self._metrics.packets_dropped.inc(n_dropped)
        self._n_packets -= n_dropped
        self._n_unsent -= n_dropped
        self._all_sent.set()

    def close(self) -> None:
        """Tell the client how much audio there was, if there was any."""
        if self._coder is None:
            return
        if self.ttfa_s is not None and self._is_heard:
            self._metrics.count_heard(self._playout)
        self._outlet.event(
            OutputAudioDone(
                event_id=self._outlet.next_event_id(),
                response_id=self._response_id,
                n_samples=self.n_samples,
                duration_ms=round(self.seconds * 1000, 3),
                n_packets=self._n_packets,
            )
        )

    def _announce(self, coder: AudioCoder) -> None:
        self._outlet.event(
            OutputAudioStarted(
                event_id=self._outlet.next_event_id(),
                response_id=self._response_id,
                response_number=self._number,
                codec=self._output.codec,
                sample_rate_hz=self._output.sample_rate_hz,
                packet_ms=PACKET_MS,
                pre_skip_samples=coder.pre_skip_samples,
            )
        )

    async def _code(self, work: Callable[..., Result], *arguments: object) -> Result:
        try:
            return await self._workers.run(work, *arguments)
        # Whatever the Opus library raises must end this response and nothing else.
        except Exception as error:
            logger.exception("%s: coding failed", self._response_id)
            raise ResponseFailedError("encoder_error", f"coding failed: {error}") from error

    def _put(self, packets: list[Packet]) -> None:
        n_joined = self._outlet.packets_per_message
        for start in range(0, len(packets), n_joined):
            self._put_message(packets[start : start + n_joined])

    def _put_message(self, packets: list[Packet]) -> None:
        frame = AudioFrame(
            codec=self._output.codec,
            response_number=self._number,
            media_time_ms=self._n_packets * PACKET_MS,
            payload=b"".join(packet.payload for packet in packets),
        )
        self._n_packets += len(packets)
        self._n_unsent += len(packets)
        seconds = sum(packet.n_samples for packet in packets) / self._output.sample_rate_hz
        on_sent = partial(self._on_sent, len(packets), seconds)
        self._outlet.audio(frame, len(packets), seconds, on_sent)

    def _on_sent(self, n_packets: int, seconds: float) -> None:
        now_s = self._clock()
        self._n_unsent -= n_packets
        if not self._n_unsent:
            self._all_sent.set()
        underrun_s = self._playout.underrun_s
        self._playout.on_sent(seconds, now_s)
        if self._is_heard:
            self._metrics.underrun_s.inc(self._playout.underrun_s - underrun_s)
        if self.ttfa_s is None:
            self.ttfa_s = 0.0 if self.asked_s is None else now_s - self.asked_s
            if self._is_heard:
                self._metrics.ttfa_s.observe(self.ttfa_s)
            if self._on_first_sent is not None:
                self._on_first_sent()
