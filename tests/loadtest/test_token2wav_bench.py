"""The bench of the flow-matching detokenizer: what its figures are. None is judged."""

from __future__ import annotations

import json

import pytest

from loadtest.bench import models, token2wav
from loadtest.bench.decoding import TOKEN2WAV


def taken(factor: float = 1.0) -> dict[str, float]:
    """A round: 8 streams take twice as long as one, 4 half as long again."""
    ours = {
        f"{part} {n}": factor * ms * slower
        for part, ms in (("flow", 400.0), ("vocoder", 200.0))
        for n, slower in ((1, 1.0), (4, 1.5), (8, 2.0))
    }
    return {"flow streamed": 4000.0, "flow alone": 600.0, "vocoder": 100.0, **ours}


def test_figures_are_for_a_second_of_one_stream():
    flow, vocoder, both = token2wav.rows([taken(), taken(2.0), taken(0.5)])
    assert [row["part"] for row in (flow, vocoder, both)] == list(token2wav.PARTS)
    assert (flow["streamed_ms"], flow["alone_ms"]) == (4000.0, 600.0)
    assert (flow["at_1_ms"], flow["at_4_ms"], flow["at_8_ms"]) == (400.0, 150.0, 100.0)
    assert (flow["streamed_over_1"], flow["streamed_over_8"]) == (10.0, 40.0)
    assert (flow["alone_over_1"], flow["alone_over_8"]) == (1.5, 6.0)
    assert (vocoder["streamed_over_1"], vocoder["alone_over_8"]) == (0.5, 2.0)
    assert both["at_8_ms"] == 150.0
    assert both["streamed_over_8"] == pytest.approx(4100 / 150)


def test_it_is_asked_for_by_name(monkeypatch, tmp_path, capsys):
    asked: list[list[str]] = []

    def run(arguments, environment, take) -> None:
        asked.append(arguments)
        assert "cosyvoice" in environment["PYTHONPATH"]
        take("a library says something\n")
        for _ in range(token2wav.N_TICKS):
            take("null\n")
        take(json.dumps(token2wav.rows([taken()])) + "\n")

    monkeypatch.setattr(models, "_run", run)
    assert models.main(["--only", TOKEN2WAV, "--out", str(tmp_path)]) == 0
    assert asked == [["-m", "loadtest.bench.token2wav"]]
    written = json.loads(next(tmp_path.iterdir()).read_text())
    assert written["models"] == []
    assert written[TOKEN2WAV][0]["at_8_ms"] == 100.0
    assert "27.33" in capsys.readouterr().out


def test_its_failure_is_named(monkeypatch, tmp_path, capsys):
    def run(arguments, environment, take) -> None:
        raise models.BenchError("no oracle")

    monkeypatch.setattr(models, "_run", run)
    assert models.main(["--only", TOKEN2WAV, "--out", str(tmp_path)]) == 1
    assert "token2wav: no oracle" in capsys.readouterr().out
