"""Who is connected, as a process of its own tells it: ``python -m anyparty.serving.desk KIT``.

FLARE's client for administrators takes seconds to begin, so this one stays.  A line of JSON for every look; it ends
when its standard input does, or when the server is gone.
"""

from __future__ import annotations

import contextlib
import json
import select
import sys
from pathlib import Path
from typing import TextIO

POLL_S = 1.0


def watch(kit: Path, out: TextIO) -> None:
    """Say who is connected, again and again."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session  # noqa: PLC0415 - seconds, and only here

    name = json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
    session = new_secure_session(name, str(kit), timeout=10.0)
    try:
        while True:
            sites = sorted(client.name for client in session.get_system_info().client_info)
            print(json.dumps({"sites": sites}), file=out, flush=True)
            if select.select([sys.stdin], [], [], POLL_S)[0] and not sys.stdin.readline():
                return
    finally:
        session.close()


def main() -> None:
    """Watch; the last line says why it ended."""
    out = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            watch(Path(sys.argv[1]), out)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out, flush=True)


if __name__ == "__main__":
    main()
