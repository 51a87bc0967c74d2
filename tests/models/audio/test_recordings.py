"""Files of strangers: every kind is read, nothing else is opened, faults have names."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest

from models.audio.recordings import PIECE_S, Recording, RecordingError
from realtime.audio.containers import CONTAINERS, ContainerWriter

RATE_HZ = 16_000


def tone(seconds: float, rate_hz: int = 24_000) -> np.ndarray:
    at_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.4 * np.sin(2 * np.pi * 440 * at_s)).astype(np.float32)


def file_of(name: str, pcm: np.ndarray) -> bytes:
    writer = ContainerWriter(CONTAINERS[name], 24_000, 24_000)
    return writer.push(pcm) + writer.finish()


def muxed(muxer: str, codec: str, pcm: np.ndarray) -> bytes:
    target = io.BytesIO()
    with av.open(target, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=48_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(
            np.repeat((pcm * 32767).astype(np.int16), 2)[None], format="s16", layout="stereo"
        )
        frame.sample_rate = 48_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return target.getvalue()


def wave_file(
    samples: bytes, *, rate_hz: int = 16_000, n_channels: int = 1, kind: int = 1, n_bits: int = 16
) -> bytes:
    n_block = max(1, n_channels * n_bits // 8)
    fmt = struct.pack("<HHIIHH", kind, n_channels, rate_hz, rate_hz * n_block, n_block, n_bits)
    head = b"RIFF" + struct.pack("<I", 36 + len(samples)) + b"WAVEfmt " + struct.pack("<I", 16)
    return head + fmt + b"data" + struct.pack("<I", len(samples)) + samples


def read(content: bytes, max_s: float = 60.0) -> list[np.ndarray]:
    recording = Recording(io.BytesIO(content), rate_hz=RATE_HZ, max_s=max_s)
    pieces = []
    try:
        while (piece := recording.read()) is not None:
            pieces.append(piece)
    finally:
        recording.close()
    assert recording.seconds == pytest.approx(sum(map(len, pieces)) / RATE_HZ)
    return pieces


def fault(content: bytes, max_s: float = 60.0) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        read(content, max_s)
    return caught.value


@pytest.mark.parametrize("name", [name for name in CONTAINERS if name != "pcm"])
def test_what_we_write_we_read(name):
    pcm = np.concatenate(read(file_of(name, tone(2.0))))
    assert len(pcm) / RATE_HZ == pytest.approx(2.0, abs=0.1)
    assert np.argmax(np.abs(np.fft.rfft(pcm[:RATE_HZ]))) == pytest.approx(440, abs=2)


@pytest.mark.parametrize(
    ("muxer", "codec"),
    [("mp4", "aac"), ("webm", "libopus"), ("matroska", "pcm_s16le"), ("ipod", "alac")],
)
def test_what_browsers_and_telephones_record_is_read(muxer, codec):
    pcm = np.concatenate(read(muxed(muxer, codec, tone(1.0, 48_000))))
    assert len(pcm) / RATE_HZ == pytest.approx(1.0, abs=0.1)


def test_a_long_file_comes_in_pieces():
    pieces = read(file_of("wav", tone(3 * PIECE_S)))
    assert len(pieces) >= 3
    assert max(map(len, pieces)) < 1.5 * PIECE_S * RATE_HZ


def test_samples_that_are_no_numbers_or_too_loud_are_made_safe():
    samples = np.full(16_000, np.nan, "<f4")
    samples[8_000:] = 1e30
    pcm = np.concatenate(read(wave_file(samples.tobytes(), kind=3, n_bits=32)))
    assert np.isfinite(pcm).all()
    assert np.abs(pcm).max() <= 1.0


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"hello", "invalid_audio"),
        (b"\0" * 100_000, "invalid_audio"),
        (bytes(range(256)) * 400, "invalid_audio"),
        (wave_file(b"\0" * 100, rate_hz=1), "invalid_audio"),
        (wave_file(b"\0" * 100, rate_hz=0), "invalid_audio"),
        (wave_file(b"\0" * 12_800, n_channels=64), "invalid_audio"),
        (wave_file(b"\0" * 100, n_channels=0), "invalid_audio"),
    ],
)
def test_what_is_no_sound_is_refused(content, code):
    assert fault(content).code == code


def test_a_file_without_samples_is_read_as_nothing():
    assert read(wave_file(b"")) == []


def test_playlists_are_not_followed(tmp_path):
    """FFmpeg would open what they name: files of the server, and addresses of its network."""
    secret = tmp_path / "secret.wav"
    secret.write_bytes(file_of("wav", tone(1.0)))
    for content in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{secret}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {secret}\n",
    ):
        assert fault(content.encode()).code == "invalid_audio"


def test_a_kind_that_is_not_named_is_refused_though_it_could_be_decoded():
    """The list is what keeps FFmpeg's other formats away, whatever they can do."""
    head = struct.pack(">4sIIIII", b".snd", 24, 3200, 3, 16_000, 1)
    assert fault(head + b"\0" * 3200).code == "invalid_audio"


def test_a_film_without_sound_is_refused_by_name():
    target = io.BytesIO()
    with av.open(target, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame(64, 64, "yuv420p")))
        container.mux(stream.encode(None))
    assert fault(target.getvalue()).code == "no_audio"


def test_a_file_that_breaks_off_says_where():
    whole = file_of("flac", tone(9.0))
    found = fault(whole[: len(whole) * 2 // 3])
    assert found.code == "invalid_audio"
    assert "after 6.0 s" in found.message


def test_too_long_is_said_at_once_where_the_file_states_its_length():
    with pytest.raises(RecordingError, match="longer than 60 s"):
        Recording(io.BytesIO(wave_file(b"\0" * 32_000 * 61)), rate_hz=RATE_HZ, max_s=60)


def test_too_long_is_found_out_where_it_does_not():
    assert fault(file_of("mp3", tone(9.0)), max_s=5.0).code == "audio_too_long"
