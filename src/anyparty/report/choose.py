"""Which method fits: the table of docs/choose.md, made from what the methods declare.

``python -m anyparty.report.choose docs/choose.md`` writes the page's table anew; its words stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

from anyparty.methods.table import METHODS, method
from anyparty.report.privacy import filled

PAGES = {"false-vfl-1": "false_vfl", "false-vfl-2": "false_vfl"}  # those that share a page


def tables() -> dict[str, str]:
    """Return the page's table as Markdown, by its name."""
    heads = ["`method.name`", "trains on", "predicts", "needs", "sends"]
    rows = [heads, ["---"] * len(heads)]
    for name in METHODS:
        can = method(name).can
        most = "" if can.most_parties is None else f", at most {can.most_parties} of them"
        needs = ("all parties there" if can.needs == "all" else "any one party") + most
        sends = ", ".join(f"`{message.tag}`" for message in can.messages)
        link = f"[`{name}`](methods/{PAGES.get(name, name)}.md)"
        rows.append([link, can.trains_on, can.predicts_for, needs, sends])
    return {"methods": "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"}


def main(path: str) -> None:
    """Write the page's table anew."""
    page = Path(path)
    page.write_text(filled(page.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/choose.md")
