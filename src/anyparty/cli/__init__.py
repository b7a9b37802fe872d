"""The command line: it parses arguments and calls functions that users can call in Python, too.

No module of this package imports torch before a command needs it, so that ``anyparty --help`` answers at once.
"""

import os

from anyparty.cli.errors import end_at_once


def main() -> None:
    """Run the command ``anyparty`` with the arguments of this process."""
    end_at_once()
    from anyparty.cli.app import app  # Ctrl-C ends the process during this import

    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None  # with NO_COLOR set, rich would leave out colours, but not bold and dim text
    app(prog_name="anyparty")
