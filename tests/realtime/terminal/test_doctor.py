"""The checks of `parley doctor` on this machine and on ones that lack something."""

from __future__ import annotations

import socket

import pytest

from realtime.audio import opus
from realtime.terminal import doctor, sound


def test_opus_is_tried_not_only_found():
    assert doctor.check_opus().mark == "ok"


def test_no_opus_says_what_to_install(monkeypatch):
    monkeypatch.setattr(opus, "LIBRARIES", ("no_such_library",))
    finding = doctor.check_opus()
    assert finding.mark == "fault"
    assert "libopus0" in finding.advice


def test_torch_is_asked_in_its_own_process():
    findings = list(doctor.check_torch())
    assert [finding.name for finding in findings] == ["torch", "CUDA"]
    assert findings[0].mark == "ok"


def test_a_broken_torch_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH_QUESTION", "raise ImportError('no torch here')")
    [finding] = doctor.check_torch()
    assert finding.mark == "fault"
    assert "no torch here" in finding.seen


def test_weights_that_fail_to_load_pass_on_the_advice():
    def load() -> str:
        raise RuntimeError("a.safetensors is damaged; fetch it again")

    finding = doctor.check_weights("pico", load)
    assert (finding.mark, finding.advice) == ("fault", "a.safetensors is damaged; fetch it again")


def test_without_what_hears_a_server_speaks_only():
    def load() -> str:
        raise RuntimeError("no Whisper model 'tiny.en'")

    finding = doctor.check_hearing(load)
    assert (finding.mark, finding.advice) == ("note", "no Whisper model 'tiny.en'")
    assert doctor.check_hearing(lambda: "hears with whisper").mark == "ok"


def test_an_address_of_another_machine_is_not_a_taken_port():
    # RFC 5737: an address for documentation, nobody's.
    finding = doctor.check_port("192.0.2.1", 8765)
    assert finding.mark == "note"
    assert "--host" in finding.advice


def test_a_taken_port_names_another():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = doctor.check_port("127.0.0.1", port)
    assert finding.mark == "note"
    assert f"--port {port + 1}" in finding.advice


@pytest.mark.parametrize("has_device", [True, False])
def test_sound_is_described(monkeypatch, has_device):
    monkeypatch.setattr(sound, "_sounddevice", lambda: object() if has_device else None)
    monkeypatch.setattr(sound, "_PROGRAMS", ())
    assert doctor.check_sound().mark == ("ok" if has_device else "note")
