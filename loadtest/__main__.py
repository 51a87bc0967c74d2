"""`python -m loadtest`: loads a server, and says what its callers hear.

Whatever goes wrong in a foreseen way is one line on standard error and an exit code above 0.
"""

from __future__ import annotations

import sys

import typer

from loadtest.commands.compare import compare, plot
from loadtest.commands.profile import profile
from loadtest.commands.run import run
from loadtest.commands.simulate import simulate
from loadtest.commands.soak import soak
from loadtest.commands.sweep import sweep
from loadtest.plots import PlotError
from loadtest.report import ReportError
from loadtest.server_process import ServerProcessError
from loadtest.traffic.scenarios import ScenarioError
from realtime.audio.files import AudioFileError
from realtime.client.spoken import ClientError

_EXPECTED = (
    ClientError,
    AudioFileError,
    ReportError,
    ScenarioError,
    PlotError,
    ServerProcessError,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Load generator: callers arrive as in life, and hear what a listener would hear.",
)
for command in (run, sweep, compare, plot, soak, profile, simulate):
    app.command()(command)


def main() -> None:
    """Entry point."""
    try:
        app(prog_name="python -m loadtest")
    except _EXPECTED as error:
        print(f"Error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
