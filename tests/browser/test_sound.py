"""The page's parts that need no server: jitter buffer, decoders, frames, marks. Run in Chromium."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from realtime.audio.opus import OpusDecoder, OpusEncoder
from realtime.frames import AudioFrame, encode_audio_frame

RATE_HZ = 48_000
FADE_SAMPLES = 288
"""6 ms: what `jitter-buffer.js` fades in and out over."""


@pytest.fixture
def module(page, scripted):
    """Runs a script with the exports of one of the page's modules at hand."""
    page.open(scripted[0])

    def run(name: str, script: str):
        return page.run(f"import('/{name}').then(async (m) => {{ {script} }})")

    return run


def rendered(module, script: str) -> tuple[np.ndarray, dict]:
    """Samples and last figures of a buffer that a script drives with `push(n)` and `render(n)`.

    The signal is the constant 1, so that every change of the output is a fade or a jump.
    """
    value = module(
        "jitter-buffer.js",
        "const buffer = new m.JitterBuffer(48000); const all = [];"
        "const push = (n) => buffer.push(new Float32Array(n).fill(1));"
        "const render = (n) => { const block = new Float32Array(n); buffer.render(block);"
        "  all.push(...block); };"
        f"{script}; return {{ all, figures: buffer.figures() }};",
    )
    return np.array(value["all"]), value["figures"]


def test_nothing_sounds_before_80_ms_are_held(module):
    pcm, figures = rendered(
        module, "buffer.start('r'); push(3839); render(960); push(1); render(1)"
    )
    assert not pcm[:960].any()
    assert figures["state"] == "playing"
    assert figures["playedS"] == pytest.approx(1 / RATE_HZ)


def test_a_short_answer_sounds_at_once_and_whole(module):
    pcm, figures = rendered(module, "buffer.start('r'); push(500); buffer.finish(); render(960)")
    assert figures["state"] == "idle"
    assert figures["playedS"] * RATE_HZ == pytest.approx(500)
    assert (pcm[FADE_SAMPLES:500] == 1).all()
    assert not pcm[500:].any()


def test_an_underrun_is_counted_fades_and_holds_more_before_it_resumes(module):
    pcm, figures = rendered(
        module,
        "buffer.start('r'); push(4800); render(9600);"  # runs dry after 4800
        "push(4800); render(960);"  # 100 ms: not enough any more
        "push(1000); render(4000)",
    )
    assert figures["nUnderruns"] == 1
    assert figures["targetS"] == pytest.approx(0.12)
    assert not pcm[9600:10560].any()
    assert pcm[10560:].any()
    assert np.abs(np.diff(pcm)).max() <= 1.01 / FADE_SAMPLES


def test_every_underrun_makes_it_more_careful_up_to_half_a_second(module):
    _, figures = rendered(
        module, "buffer.start('r'); for (let i = 0; i < 30; i += 1) { push(30000); render(40000); }"
    )
    assert figures["nUnderruns"] == 30
    assert figures["targetS"] == 0.5


def test_answers_without_underruns_make_it_quicker_again(module):
    _, figures = rendered(
        module,
        "buffer.start('a'); push(4800); render(9600);"
        "for (let i = 0; i < 9; i += 1) {"
        "  buffer.start('b'); push(96); buffer.finish(); render(128); }",
    )
    assert figures["targetS"] == pytest.approx(0.08)


def test_a_cut_is_silent_within_the_fade_and_without_a_click(module):
    pcm, figures = rendered(
        module, "buffer.start('r'); push(48000); render(9600); buffer.cut(); render(9600)"
    )
    assert not pcm[9600 + FADE_SAMPLES :].any()
    assert np.abs(np.diff(pcm)).max() <= 1.01 / FADE_SAMPLES
    assert figures["heldS"] == 0


def test_what_comes_after_a_cut_is_not_kept(module):
    pcm, _ = rendered(module, "buffer.start('r'); buffer.cut(); push(48000); render(9600)")
    assert not pcm.any()


def test_frames_of_another_response_end_at_the_gate(module):
    def message(number: int) -> str:
        frame = AudioFrame(
            codec="opus", response_number=number, media_time_ms=70_000, payload=b"\x01\x02"
        )
        return json.dumps(list(encode_audio_frame(frame)))

    taken = module(
        "wire.js",
        "const gate = new m.FrameGate(); const take = (b) => gate.take(new Uint8Array(b).buffer);"
        f"const before = take({message(3)}); gate.open(65536 + 3);"
        f"const [mine, other] = [take({message(3)}), take({message(2)})]; gate.shut();"
        f"const after = take({message(3)});"
        "return [before, mine && [mine.codec, mine.mediaMs, ...mine.payload], other, after];",
    )
    assert taken == [None, ["opus", 70_000, 1, 2], None, None]


@pytest.mark.parametrize("kind", ["webcodecs", "wasm"])
def test_both_decoders_give_what_libopus_gives(module, kind):
    encoder = OpusEncoder(sample_rate_hz=RATE_HZ, bitrate_bps=32_000, complexity=5)
    at = np.arange(RATE_HZ // 2) / RATE_HZ
    pcm = (0.4 * np.sin(2 * np.pi * (300 + 400 * at) * at)).astype(np.float32)
    packets = [encoder.encode(one) for one in pcm.reshape(-1, encoder.packet_samples)]
    decoder = OpusDecoder(sample_rate_hz=RATE_HZ)
    expected = np.concatenate([decoder.decode(packet) for packet in packets])
    coded = json.dumps([base64.b64encode(packet).decode() for packet in packets])
    got = module(
        "opus.js",
        "const all = []; const faults = [];"
        f"const decoder = await m.makeDecoder('{kind}', (pcm) => all.push(...pcm),"
        "  (message) => faults.push(message));"
        f"{coded}.forEach((packet, i) => decoder.decode("
        "  Uint8Array.from(atob(packet), (c) => c.charCodeAt(0)), i * 20));"
        "await decoder.flush(); decoder.close(); return { all, faults };",
    )
    assert got["faults"] == []
    assert len(got["all"]) == len(expected)
    # Builds of libopus differ in rounding; the browser's may dither to 16 bits.
    assert np.abs(np.array(got["all"]) - expected).max() < 1e-2


def test_pcm_for_the_server_keeps_speech_and_drops_what_would_fold(module):
    def gain(frequency_hz: int) -> float:
        pcm = module(
            "pcm.js",
            "const decimator = new m.Decimator(); const all = [];"
            "for (let f = 0; f < 20; f += 1) { all.push(...decimator.push(Float32Array.from("
            f"  {{ length: 960 }}, (_, i) => Math.sin(2 * Math.PI * {frequency_hz}"
            "  * (f * 960 + i) / 48000)))); } return all;",
        )
        assert len(pcm) == 20 * 320
        return float(np.abs(pcm[320:]).max())

    assert gain(1000) == pytest.approx(1, abs=0.02)
    assert gain(3400) == pytest.approx(1, abs=0.05)
    assert gain(12_000) < 0.01


@pytest.mark.parametrize(
    ("heard_ms", "n_characters"), [(0, 0), (500, 5), (1000, 10), (1500, 15), (2000, 20), (9999, 20)]
)
def test_between_marks_the_voice_goes_on_evenly(module, heard_ms, n_characters):
    marks = [[0, 0], [1000, 10], [2000, 20]]
    script = f"return m.spokenCharacters({marks}, {heard_ms})"
    assert module("transcript.js", script) == pytest.approx(n_characters)


@pytest.mark.parametrize(
    ("n_characters", "heard"),
    [(0, ""), (1, "Well "), (4, "Well "), (5.5, "Well then."), (99, "Well then.")],
)
def test_a_word_is_marked_as_soon_as_it_begins(module, n_characters, heard):
    script = f"const text = 'Well then.'; return text.slice(0, m.wordEnd(text, {n_characters}))"
    assert module("transcript.js", script) == heard
