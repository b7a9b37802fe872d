"""The command line: parse, build, call.  Whatever a command does is one call in Python, named in its file.

    app       the commands
    guard     errors as sentences, exit codes
    show      what commands print

Nothing here imports torch before a command needs it, so that ``anyparty --help`` answers at once.
"""

import signal
from types import FrameType

from anyparty.cli.app import app


def main() -> None:
    """Run the command line; a request to end (SIGTERM: ``kill``, a batch system, a container) is heard as Ctrl-C."""
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    app(prog_name="anyparty")


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):  # ignored, as in a shell's background jobs, or not Python's
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)
