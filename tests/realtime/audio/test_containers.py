"""Files that grow: playable from the first bytes on, exact at the end."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.audio.containers import CONTAINERS, ContainerWriter

RATE_HZ = 24_000
PADDED = ("mp3", "aac")
GRANULE_HZ = 48_000


def sweep(n_samples: int, rate_hz: int = RATE_HZ) -> np.ndarray:
    at_s = np.arange(n_samples) / rate_hz
    return (0.4 * np.sin(2 * np.pi * (200 + 100 * at_s) * at_s)).astype(np.float32)


def written(name: str, pcm: np.ndarray, in_rate_hz: int = RATE_HZ, step: int = 480) -> list[bytes]:
    """What comes out for each piece that goes in; the last is the end of the file."""
    writer = ContainerWriter(CONTAINERS[name], in_rate_hz, RATE_HZ)
    parts = [writer.push(pcm[start : start + step]) for start in range(0, len(pcm), step)]
    return [*parts, writer.finish()]


def decoded(content: bytes) -> np.ndarray:
    to_mono = av.AudioResampler(format="flt", layout="mono", rate=RATE_HZ)
    blocks = []
    with av.open(io.BytesIO(content)) as container:
        for frame in container.decode(audio=0):
            blocks += [one.to_ndarray()[0] for one in to_mono.resample(frame)]
    blocks += [one.to_ndarray()[0] for one in to_mono.resample(None)]
    return np.concatenate(blocks)


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "pcm"])
@pytest.mark.parametrize("n_samples", [RATE_HZ, 2 * RATE_HZ + 123, 500])
def test_the_length_survives(name, n_samples):
    n_decoded = len(decoded(b"".join(written(name, sweep(n_samples)))))
    assert 0 <= n_decoded - n_samples <= (2400 if name in PADDED else 0)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_files_hold_the_same_samples(name):
    pcm = sweep(RATE_HZ)
    assert np.abs(decoded(b"".join(written(name, pcm))) - pcm).max() < 1 / 32768


@pytest.mark.parametrize("name", CONTAINERS)
def test_bytes_come_as_samples_do(name):
    """Nothing holds back more than 170 ms of sound, so that a client can play while it comes."""
    parts = written(name, sweep(RATE_HZ))
    n_first = next(n for n, part in enumerate(parts) if len(part) > 200)
    assert 20 * (n_first + 1) <= 170
    longest = max(
        len(run) for run in "".join("x" if part else " " for part in parts[n_first:]).split("x")
    )
    assert 20 * (longest + 1) <= 170


@pytest.mark.parametrize("name", CONTAINERS)
def test_nothing_goes_in_and_the_file_still_ends(name):
    assert isinstance(b"".join(written(name, sweep(0))), bytes)


@given(st.lists(st.integers(1, 3000), max_size=12), st.sampled_from([16_000, 22_050, 44_100]))
def test_bare_samples_do_not_depend_on_the_pieces(sizes, rate_hz):
    pcm = sweep(sum(sizes), rate_hz)
    writer = ContainerWriter(CONTAINERS["pcm"], rate_hz, RATE_HZ)
    parts, start = [], 0
    for size in sizes:
        parts.append(writer.push(pcm[start : start + size]))
        start += size
    parts.append(writer.finish())
    whole = b"".join(written("pcm", pcm, rate_hz, step=max(1, len(pcm))))
    assert b"".join(parts) == whole
    assert len(whole) == 2 * ((2 * len(pcm) * RATE_HZ + rate_hz) // (2 * rate_hz))


def test_the_header_of_a_wave_file_says_that_its_length_is_unknown():
    first = written("wav", sweep(480))[0]
    riff, n_riff, wave, fmt, n_fmt, kind, n_channels, rate_hz = struct.unpack(
        "<4sI4s4sIHHI", first[:28]
    )
    assert (riff, wave, fmt, n_fmt) == (b"RIFF", b"WAVE", b"fmt ", 16)
    assert (kind, n_channels, rate_hz) == (1, 1, RATE_HZ)
    assert first[36:40] == b"data"
    assert (n_riff, struct.unpack("<I", first[40:44])[0]) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert len(first) == 44 + 2 * 480


def ogg_pages(content: bytes) -> Iterator[tuple[int, int]]:
    """Flags and granule position of each page."""
    place = 0
    while place < len(content):
        magic, _, flags, granule = struct.unpack("<4sBBq", content[place : place + 14])
        assert magic == b"OggS"
        n_segments = content[place + 26]
        table = content[place + 27 : place + 27 + n_segments]
        yield flags, granule
        place += 27 + n_segments + sum(table)


def test_opus_comes_in_short_pages_of_which_the_last_ends_the_stream():
    parts = written("opus", sweep(RATE_HZ + 77))
    content = b"".join(parts)
    pages = list(ogg_pages(content))
    flags = [flag for flag, _ in pages]
    assert flags[0] & 2
    assert [bool(flag & 4) for flag in flags] == [False] * (len(flags) - 1) + [True]
    granules = [granule for _, granule in pages[2:]]
    steps = np.diff([0, *granules])
    assert (steps > 0).all()
    assert steps.max() <= 0.04 * GRANULE_HZ
    pre_skip = struct.unpack("<H", content[content.index(b"OpusHead") + 10 :][:2])[0]
    assert granules[-1] - pre_skip == 2 * (RATE_HZ + 77)


def test_opus_is_behind_by_two_packets_at_most():
    writer = ContainerWriter(CONTAINERS["opus"], RATE_HZ, RATE_HZ)
    content = b""
    for n in range(50):
        content += writer.push(sweep(480))
        granule = list(ogg_pages(content))[-1][1]
        assert granule >= (n + 1 - 2) * 960
    assert writer.finish()
