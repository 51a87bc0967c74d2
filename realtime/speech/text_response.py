"""A response whose text is known as a whole, for a caller without a session. Event loop only.

It gives audio in order of speech to whoever takes it; containers and sockets are the lane's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.types import Pcm
from realtime.gateway import Gateway
from realtime.playout import PlayoutClock
from realtime.settings import MAX_SEED, SpeechSettings, asked_seed, max_seconds
from realtime.socket_link import first_of
from realtime.speech.errors import ResponseFailedError
from realtime.speech.speaker import Speaker
from realtime.speech.spoken_audio import SpokenAudio

Take = Callable[[Pcm], Awaitable[None]]


class TextResponse:
    """One text, spoken as soon and then as fast as there is room.

    Args:
        text: all of it.
        settings: voice, language and options, checked.
        gateway: what sessions share.
        playout: what a client that plays at once has heard; told by the lane of all that is sent.
        is_paused: whether the client reads too slowly now.
    """

    def __init__(
        self,
        text: str,
        *,
        settings: SpeechSettings,
        gateway: Gateway,
        playout: PlayoutClock,
        is_paused: Callable[[], bool],
    ) -> None:
        bridge = gateway.bridges[settings.model]
        spec, config = bridge.spec, gateway.config
        seed = asked_seed(settings, spec)
        self._speaker = Speaker(
            bridge=bridge,
            settings=settings,
            seed=gateway.random.randint(0, MAX_SEED) if seed is None else seed,
            workers=gateway.workers,
            config=config,
            clock=gateway.clock,
            playout=playout,
            is_eager=True,
        )
        self._spoken = SpokenAudio(self._speaker, spec, config, is_paused)
        max_s = min(max_seconds(settings, spec) or config.max_audio_s, config.max_audio_s)
        self._samples_left = round(max_s * spec.frame.sample_rate_hz)
        self._failure: ResponseFailedError | None = None
        self._speaker.append(text)
        self._speaker.end()

    @property
    def is_cut(self) -> bool:
        """Whether a limit has cut it: of seconds, or of what the model says at once."""
        return self._samples_left == 0 or self._spoken.n_units_cut > 0

    @property
    def n_prompt_rows(self) -> int:
        """Rows that the model read."""
        return self._spoken.n_prompt_rows

    @property
    def n_frames(self) -> int:
        """Codec frames that it made."""
        return self._spoken.n_frames

    def set_paused(self, is_paused: bool) -> None:
        """The client reads too slowly, or does so no more."""
        self._speaker.set_paused(is_paused)

    async def run(self, take: Take) -> None:
        """Speak it. `take` is given float32 `(n,)` at the model's rate, in order; it may wait.

        Leaves nothing behind in the engine, however it ends.

        Raises:
            ResponseFailedError: it cannot go on.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                speaking = tasks.create_task(self._speaker.run())
                tasks.create_task(self._give(take, speaking))
        except* ResponseFailedError as group:
            self._failure = first_of(group)
        finally:
            self._speaker.abort()
        if self._failure is not None:
            raise self._failure

    async def _give(self, take: Take, speaking: asyncio.Task[None]) -> None:
        while self._samples_left and (pcm := await self._spoken.next_chunk()) is not None:
            pcm = pcm[: self._samples_left]
            self._samples_left -= len(pcm)
            await take(pcm)
        if not self._samples_left:
            speaking.cancel()
