"""Settings of the gateway, checked when made. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from realtime.access.addresses import is_loopback
from realtime.access.config import AccessConfig
from realtime.errors import ConfigError

WEB_DEMO: Final = Path(__file__).resolve().parent.parent / "web_demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """How streamed text is cut into units.

    Lengths are in characters; a digit counts as several, because it is spoken as a word.

    Args:
        min_sentence: a shorter sentence is spoken together with the next one.
        first_clause: the first unit of a response may end at a clause mark from here on.
        max_unit: a unit is cut at a clause mark or at white space before it gets longer.
    """

    min_sentence: int = 16
    first_clause: int = 48
    max_unit: int = 240

    def __post_init__(self) -> None:
        """Refuse limits that cut everything or nothing."""
        if not 1 <= self.min_sentence <= self.first_clause <= self.max_unit:
            raise ConfigError("text limits need 1 <= min_sentence <= first_clause <= max_unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLimits:
    """What may wait for one socket.

    Args:
        high_s: seconds of unsent audio at which the engine stream is paused.
        low_s: seconds under which it goes on.
        hard_s: seconds at which a socket that takes nothing is closed without more patience.
        high_bytes: as `high_s`, in bytes.
        low_bytes: as `low_s`, in bytes.
        hard_bytes: as `hard_s`, in bytes.
        max_events: JSON events that may wait; more means that the client does not read.
        blocked_s: longest time that one send may take.
        hard_blocked_s: the same past the hard mark.
        socket_bytes: kernel send buffer of a socket, so that a full one is noticed.
    """

    high_s: float = 2.0
    low_s: float = 0.5
    hard_s: float = 10.0
    high_bytes: int = 262_144
    low_bytes: int = 65_536
    hard_bytes: int = 1_048_576
    max_events: int = 1024
    blocked_s: float = 10.0
    hard_blocked_s: float = 1.0
    socket_bytes: int = 65_536

    def __post_init__(self) -> None:
        """Refuse marks out of order."""
        if not 0 <= self.low_s < self.high_s < self.hard_s:
            raise ConfigError("send limits need 0 <= low_s < high_s < hard_s")
        if not 0 <= self.low_bytes < self.high_bytes < self.hard_bytes:
            raise ConfigError("send limits need 0 <= low_bytes < high_bytes < hard_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """How the gateway listens, and what a client may ask of it.

    Args:
        host: address to listen on.
        port: 0 takes a free one.
        max_sessions: sockets at once; more are refused before the upgrade.
        retry_after_s: what a refused client is told to wait.
        max_message_bytes: a larger message closes the socket (1009), a larger request is refused.
        max_audio_message_bytes: the same of conversations: a recording may come in one event.
        max_messages_per_s: sustained rate of one socket; an error warns, then it is closed (1008).
        message_burst: messages that may come at once.
        max_text_characters: of one response.
        max_audio_s: of one response; the rest is cut.
        max_queued_responses: responses that may wait behind the one that speaks.
        first_message_timeout_s: a socket that says nothing for so long is closed.
        idle_timeout_s: the same between responses.
        max_session_s: longest conversation; the socket is closed then.
        ping_interval_s: between WebSocket pings; an unanswered one closes the socket.
        drain_timeout_s: how long a stop waits for responses.
        engine_silence_s: a stream of which the engine says nothing for so long fails its response.
        open_ahead_s: a unit's engine stream is opened this long before its audio is due.
        worker_threads: of the pool that plans, resamples and encodes.
        opus_bitrate_bps: default of the `bitrate_bps` output setting.
        opus_complexity: default of the `complexity` output setting.
        text: how text is cut.
        send: what may wait for a socket.
        access: who may come in.
        web_demo: folder of the page at `/`.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    max_sessions: int = 256
    retry_after_s: int = 2
    max_message_bytes: int = 1_048_576
    max_audio_message_bytes: int = 8_388_608
    max_messages_per_s: float = 500.0
    message_burst: int = 1000
    max_text_characters: int = 20_000
    max_audio_s: float = 1800.0
    max_queued_responses: int = 8
    first_message_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0
    max_session_s: float = 3600.0
    ping_interval_s: float = 20.0
    drain_timeout_s: float = 10.0
    engine_silence_s: float = 30.0
    open_ahead_s: float = 1.5
    worker_threads: int = 2
    opus_bitrate_bps: int = 32_000
    opus_complexity: int = 5
    text: TextLimits = field(default_factory=TextLimits)
    send: SendLimits = field(default_factory=SendLimits)
    access: AccessConfig = field(default_factory=AccessConfig)
    web_demo: Path = WEB_DEMO

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}, must be between 0 and 65535")
        not_positive = {"port", "max_queued_responses", "opus_complexity", "drain_timeout_s"}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{one.name} is {value}, must be finite")
            if isinstance(value, int | float) and one.name not in not_positive and value <= 0:
                raise ConfigError(f"{one.name} is {value}, must be above 0")
        if self.max_queued_responses < 0 or self.drain_timeout_s < 0:
            raise ConfigError("max_queued_responses and drain_timeout_s must be 0 or more")
        if not 6000 <= self.opus_bitrate_bps <= 256_000 or not 0 <= self.opus_complexity <= 10:
            raise ConfigError("Opus takes a bitrate of 6000 to 256000 and a complexity of 0 to 10")
        if not (is_loopback(self.host) or self.access.keys or self.access.is_insecure):
            raise ConfigError(
                f"others can reach {self.host}, and no API keys are set: give --api-keys FILE or "
                "PARLEY_API_KEYS; or --insecure, if everybody may come in"
            )
