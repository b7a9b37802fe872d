"""The command line: parse, build, call.  Whatever a command does is one call in Python, named in its file.

    app       the commands
    guard     errors as sentences, exit codes
    show      what commands print

Nothing here imports torch before a command needs it, so that ``anyparty --help`` answers at once.
"""

from anyparty.cli.app import app


def main() -> None:
    """Run the command line."""
    app(prog_name="anyparty")
