"""When a stream's next audio is due. Pure functions of a `Stream` and the monotonic clock.

A stream is in its startup phase until its first chunk is sent; then it is steady: the client plays,
and the next chunk should be there before what was sent has been heard (a soft deadline). A stream
that is not paced has no listener to wait for it: it has no startup phase, and nothing is ever due.
"""

from __future__ import annotations

import math

from engine.stream import Stream


def is_startup(stream: Stream) -> bool:
    """The caller waits for the first sound (or the first text, where no audio is wanted)."""
    return stream.is_paced and stream.first_sent_s is None and stream.play_from_s is None


def next_chunk_deadline(stream: Stream) -> float:
    """Clock time at which the next chunk is due; in the startup phase, when it was asked for.

    Infinite for a stream that is not paced.
    """
    if not stream.is_paced:
        return math.inf
    if is_startup(stream):
        return stream.asked_s
    return _dry_s(stream) - stream.held_s


def slack_s(stream: Stream, now_s: float) -> float:
    """Seconds until the next chunk is due; negative when it is late.

    Text has no playout to follow: it is always due and never late.
    """
    if not stream.wants_pcm:
        return 0.0
    return next_chunk_deadline(stream) - now_s


def generated_slack_s(stream: Stream, now_s: float, frame_s: float) -> float:
    """Slack once all frames that were generated are detokenized and sent."""
    return slack_s(stream, now_s) + stream.frames_waiting * frame_s


def record_sent(stream: Stream, n_samples: int, sample_rate_hz: int, now_s: float) -> None:
    """Note that a chunk was published. A late one moves the client's time line back."""
    if n_samples == 0:
        return
    is_awaited = next_chunk_deadline(stream) < math.inf and not is_startup(stream)
    late_s = max(0.0, now_s - _dry_s(stream)) if is_awaited else 0.0
    if stream.first_sent_s is None:
        stream.first_sent_s = now_s
    else:
        stream.playout_offset_s += late_s
    stream.late_s += late_s
    stream.n_late_chunks += late_s > 0
    stream.samples_sent += n_samples
    stream.sent_s = stream.samples_sent / sample_rate_hz


def record_playout(stream: Stream, heard_s: float, at_s: float) -> None:
    """Take the client's word for where it is: it had heard `heard_s` seconds at `at_s`.

    A client that has heard everything it was sent is waiting for us: its report then says nothing
    about how late it plays, only a bound, and is ignored.
    """
    if stream.first_sent_s is None or heard_s >= stream.sent_s or not math.isfinite(heard_s):
        return
    stream.playout_offset_s += (at_s - heard_s) - _play_start_s(stream)


def _dry_s(stream: Stream) -> float:
    """When the client will have heard all that was sent."""
    return _play_start_s(stream) + stream.sent_s


def _play_start_s(stream: Stream) -> float:
    """When sample 0 is heard, had there been no gap: moves back with every gap."""
    first_sent_s = -math.inf if stream.first_sent_s is None else stream.first_sent_s
    play_from_s = -math.inf if stream.play_from_s is None else stream.play_from_s
    return max(first_sent_s, play_from_s) + stream.playout_offset_s
