"""The command line: it parses arguments and calls functions that users can call in Python, too.

No module of this package imports torch before a command needs it, so that ``anyparty --help`` answers at once.
"""

import os

from anyparty.cli.errors import end_at_once


def main() -> None:
    """Run the command ``anyparty`` with the arguments of this process."""
    end_at_once()
    from anyparty.cli.app import app  # Ctrl-C ends the process during these imports

    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None  # for NO_COLOR, rich itself would leave out colours only, not bold and dim text
    app(prog_name="anyparty")
