"""Screenshots, printing and accessibility checks of pages in a headless Chromium.

    python -m tools.browser PAGE.html FOLDER     # FOLDER/360-light.png, ..., printed.pdf; prints axe-core's findings

Chromium is found on the PATH.  The accessibility check needs axe-core (npm install axe-core): its ``axe.min.js`` in
``node_modules/axe-core/`` of the current folder, or the file that the environment variable AXE_CORE names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

WIDTHS = (360, 800, 1400)
SCHEMES = ("light", "dark")
NARROWEST = 500  # pixels; Chromium has no narrower window, so that a narrower page is shown in a frame
SERIOUS = {"serious", "critical"}


def chromium() -> str | None:
    """Return Chromium's program; ``None`` if it is not installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def axe_core() -> Path | None:
    """Return the file of axe-core; ``None`` if it is not installed."""
    file = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
    return file.resolve() if file.is_file() else None


def _call(page: Path, *options: str, scheme: str = "light", width: int = 1400, height: int = 900) -> str:
    program = chromium()
    if program is None:
        raise FileNotFoundError("there is no headless Chromium on the PATH")
    with tempfile.TemporaryDirectory() as profile:
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--allow-file-access-from-files", f"--window-size={width},{height}", f"--user-data-dir={profile}",
            "--virtual-time-budget=10000",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}", *options, page.as_uri(),
        ]  # fmt: skip
        return subprocess.run(command, check=True, capture_output=True, timeout=180, text=True).stdout


def evaluate(page: Path, script: str, *, scheme: str = "light", width: int = 1400) -> Any:
    """Return the JSON value of ``script``, the body of an asynchronous JavaScript function, in a page.

    If the width is below Chromium's narrowest window, the page is in a frame of that width.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        message = "document.title = 'shown'; const p = document.createElement('pre'); p.id = 'result-of-script';"
        run = (
            f"(async () => {{ {script} }})().then(value => {{ {message} p.textContent = JSON.stringify(value);"
            "(window.top.document.body || document.body).append(p); })"
        )
        base, source = f'<base href="{page.as_uri()}">', page.read_text(encoding="utf-8")
        with_script = f"{source}<script>window.addEventListener('load', () => {run})</script>"
        copy.write_text(with_script.replace("<head>", f"<head>{base}", 1), encoding="utf-8")
        shown = _call(_framed(copy, width, 900, Path(folder)), "--dump-dom", scheme=scheme, width=max(width, NARROWEST))
    found = re.search(r'<pre id="result-of-script">(.*?)</pre>', shown, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"the script gave no value in {page}")
    return json.loads(unescape(found[1]))


def _framed(page: Path, width: int, height: int, folder: Path) -> Path:
    if width >= NARROWEST:
        return page
    frame, style = folder / "frame.html", f"border: 0; width: {width}px; height: {height}px"
    frame.write_text(
        f'<body style="margin: 0"><iframe src="{page.as_uri()}" style="{style}"></iframe>', encoding="utf-8"
    )
    return frame


def height_of(page: Path, width: int) -> int:
    """Return the height of a page in pixels."""
    return int(evaluate(page, "return document.documentElement.scrollHeight", width=width))


def screenshot(page: Path, out: Path, *, width: int = 1400, height: int | None = None, scheme: str = "light") -> None:
    """Write a screenshot of a page: of its first ``height`` pixels, or of the whole page."""
    height = height or min(height_of(page, width), 16000)
    with tempfile.TemporaryDirectory() as folder:
        shown, window = _framed(page, width, height, Path(folder)), max(width, NARROWEST)
        _call(shown, f"--screenshot={out.resolve()}", width=window, height=height, scheme=scheme)


def printed(page: Path, out: Path) -> None:
    """Print a page to a PDF file."""
    _call(page, f"--print-to-pdf={out.resolve()}", "--no-pdf-header-footer")


def accessibility(page: Path, *, scheme: str = "light", width: int = 1400) -> list[str]:
    """Return axe-core's serious and critical findings, with all folded parts of the page open."""
    file = axe_core()
    if file is None:
        raise FileNotFoundError("there is no axe-core: npm install axe-core, or set AXE_CORE")
    script = (
        "document.querySelectorAll('details').forEach(each => { each.open = true });"
        f"const code = document.createElement('script'); code.src = '{file.as_uri()}';"
        "await new Promise(done => { code.onload = done; document.head.append(code) });"
        "return (await axe.run(document)).violations.map(each => [each.impact, each.id, each.help, "
        "each.nodes.length, each.nodes[0].html.slice(0, 200)])"
    )
    found = evaluate(page, script, scheme=scheme, width=width)
    return [f"{name}: {text}, {count} times, first in {where}" for impact, name, text, count, where in found
            if impact in SERIOUS]  # fmt: skip


def main() -> None:
    """Write all screenshots of a page, and print the findings of axe-core."""
    page, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in SCHEMES:
            screenshot(page, out / f"{width}-{scheme}.png", width=width, scheme=scheme)
        print(f"{width} pixels wide: {height_of(page, width)} pixels high")
    printed(page, out / "printed.pdf")
    for scheme in SCHEMES if axe_core() else ():
        print(scheme, accessibility(page, scheme=scheme) or "no serious finding")


if __name__ == "__main__":
    main()
