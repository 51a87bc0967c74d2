"""Files of runs, and the commands that read them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from loadtest.__main__ import app
from loadtest.display import state_of
from loadtest.measure.playout import Underrun
from loadtest.measure.promise import Found, Promise
from loadtest.report import ReportError, read_report, write_report
from loadtest.run import Progress
from loadtest.sweep import SweepReport, read_runs, write_sweep
from tests.loadtest.canned import CLIENT, heard, record, report

PNG = b"\x89PNG\r\n\x1a\n"
GAPPY = replace(heard(3.2, gaps=1), gaps=(Underrun(at_s=3.5, duration_s=0.05),))


def invoke(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args], env={"COLUMNS": "200"})


@pytest.fixture
def full():
    records = [record(1.0), record(2.0, heard=None, outcome="refused", detail="no room")]
    records += [record(3.0, heard=GAPPY), record(4.0, 0.9, kind="answer", part="talk")]
    return report(records=records)


def test_a_run_comes_back_from_its_file(tmp_path, full):
    path = tmp_path / "new" / "run.json"
    write_report(path, full)
    assert read_report(path) == full
    assert json.loads(path.read_text())["is_valid"] is True


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "run", "format": 99}'])
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=r"x\.json"):
        read_report(path)


def test_half_a_run_is_refused(tmp_path, full):
    path = tmp_path / "run.json"
    write_report(path, full)
    body = json.loads(path.read_text())
    del body["settings"]["seed"]
    path.write_text(json.dumps(body))
    with pytest.raises(ReportError, match="not a whole run"):
        read_report(path)


def test_a_sweep_holds_its_runs(tmp_path, full):
    path = tmp_path / "sweep.json"
    found = Found(best=2.0, failed=4.0, tried=[(2.0, True), (4.0, False)])
    runs = [full, report(0.1, rate_per_s=4.0)]
    write_sweep(path, SweepReport(promise=Promise(), found=found, runs=runs))
    assert read_runs(path) == runs
    body = json.loads(path.read_text())
    assert body["found"]["best"] == 2.0
    assert "p95 of the first audible sample <= 500 ms" in body["words"]


def test_compare_shows_ratios_of_like_runs(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_report(first, report(0.37))
    write_report(second, report(0.17))
    done = invoke("compare", first, second)
    assert done.exit_code == 0, done.output
    [line] = [one for one in done.output.splitlines() if "ttfa_audible_p95_ms" in one]
    assert line.split() == ["speech", "ttfa_audible_p95_ms", "400", "200", "0.50", "better"]
    assert "NOT COMPARABLE" not in done.output


def test_compare_says_when_runs_are_not_alike(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_report(first, report(0.37))
    write_report(second, report(0.17, seed=1, client=CLIENT))
    done = invoke("compare", first, second)
    assert done.exit_code == 3
    assert "NOT COMPARABLE: seed: 0 and 1" in done.output
    assert "NOT COMPARABLE: the second run is not valid" in done.output
    assert "ttfa_audible_p95_ms" in done.output


def test_plots_are_drawn_of_runs_and_sweeps(tmp_path, full):
    run, sweep, page = tmp_path / "run.json", tmp_path / "sweep.json", tmp_path / "out" / "page.png"
    write_report(run, full)
    found = Found(best=2.0, failed=None, tried=[(2.0, True)])
    runs = [report(0.1, 0.2, rate_per_s=rate) for rate in (1.0, 2.0, 4.0)]
    write_sweep(sweep, SweepReport(promise=Promise(), found=found, runs=runs))
    for files in ([run], [sweep, run]):
        done = invoke("plot", *files, "--out", page)
        assert done.exit_code == 0, done.output
        assert page.read_bytes().startswith(PNG)
        assert page.stat().st_size > 20_000
        page.unlink()


def test_the_live_line_tells_how_it_goes():
    progress = Progress(elapsed_s=12.0, total_s=60.0, n_calls=9, n_open=3)
    assert "3 here of 9" in state_of(progress)
    progress.records += [record(), record(gaps=1), record(heard=None, outcome="refused")]
    progress.records += [record(heard=None, outcome="lost")]
    line = state_of(progress)
    assert "first sound 130/130 ms" in line
    assert "1 gaps" in line
    assert "1 refused" in line
    assert "1 errors" in line
