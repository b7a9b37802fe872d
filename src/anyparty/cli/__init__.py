"""The command line: parse, build, call.  Whatever a command does is one call in Python, named in its file.

    app         the commands
    guard       errors as sentences, exit codes
    interrupts  Ctrl-C, from the first moment on
    show        what commands print

Nothing here imports torch before a command needs it, so that ``anyparty --help`` answers at once.
"""

from anyparty.cli.interrupts import end_at_once


def main() -> None:
    """Run the command line."""
    end_at_once()
    from anyparty.cli.app import app  # what is imported from here on can be interrupted

    app(prog_name="anyparty")
