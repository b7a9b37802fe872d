"""Draw the two kinds of Mermaid diagrams that the pages use as SVG, so that the site needs no script.

- ``flowchart TD`` with lines such as ``a --> b --> c``: boxes in rows, each below all boxes that lead to it.
- ``sequenceDiagram`` with ``participant``, ``Note over A,B: text`` and ``A->>B: text``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from textwrap import wrap

BLOCK = re.compile(r"^```mermaid\n(?P<kind>flowchart TD|sequenceDiagram)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
BOX, ROW, GAP = 112, 64, 20  # pixels: width of a box, height of a row, space between boxes
LANE, LINE, LETTERS = 250, 16, 33  # pixels between two participants and between two lines; letters in a line


def drawn(block: re.Match[str]) -> str:
    """Return the drawing of a Mermaid block.

    Raises:
        ValueError: a line is of a kind that is not supported.
    """
    lines = [line.strip() for line in block["body"].splitlines() if line.strip()]
    return flowchart(lines) if block["kind"].startswith("flowchart") else sequence(lines)


def flowchart(lines: list[str]) -> str:
    """Draw boxes and arrows; the lines are chains of names."""
    edges = [pair for line in lines for pair in _pairs(line.split(" --> "))]
    level: dict[str, int] = {}
    for _ in edges:  # the longest path has at most so many edges
        for one, other in edges:
            level[other] = max(level.get(other, 0), level.setdefault(one, 0) + 1)
    rows = [[name for name in level if level[name] == depth] for depth in range(max(level.values()) + 1)]
    width = max(map(len, rows)) * (BOX + GAP)
    place = {
        name: (width * (k + 0.5) / len(row), depth * ROW)
        for depth, row in enumerate(rows)
        for k, name in enumerate(row)
    }
    parts = [part for one, other in edges for part in _edge(*place[one], *place[other])]
    for name, (x, y) in place.items():
        parts.append(f'<rect x="{x - BOX / 2:.0f}" y="{y + 4}" width="{BOX}" height="30" rx="6"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 24}" text-anchor="middle">{escape(name)}</text>')
    words = "; ".join(f"{one} to {other}" for one, other in edges)
    return _figure(parts, width, len(rows) * ROW - 24, f"Arrows: {words}.")


def _pairs(names: list[str]) -> list[tuple[str, str]]:
    if len(names) < 2:
        raise ValueError(f"expected names with ' --> ' between them, got {names[0]!r}")
    return list(pairwise(names))


def _edge(x: float, y: float, to_x: float, to_y: float) -> Iterator[str]:
    start, end = y + 34, to_y + 4
    curve = f"{x:.0f} {end - 8:.0f} {to_x:.0f} {start:.0f} {to_x:.0f} {end - 8:.0f}"
    yield f'<path class="arrow" d="M {x:.0f} {start:.0f} C {curve}"/>'
    yield f'<path class="head" d="M {to_x:.0f} {end:.0f} l -4 -9 h 8 z"/>'


def sequence(lines: list[str]) -> str:
    """Draw participants, notes and messages from top to bottom."""
    lanes: dict[str, float] = {}
    titles, parts, words, y = [], [], [], 56
    for line in lines:
        participant = re.fullmatch(r"participant (\w+) as (.+)", line)
        note = re.fullmatch(r"Note over (\w+),(\w+): (.+)", line)
        message = re.fullmatch(r"(\w+)->>(\w+): (.+)", line)
        if participant:
            lanes[participant[1]] = 110 + LANE * len(lanes)
            titles.append(participant[2])
        elif note:
            x = (lanes[note[1]] + lanes[note[2]]) / 2
            parts.append(f'<text x="{x}" y="{y + 12}" text-anchor="middle" class="note">{escape(note[3])}</text>')
            y += 32
        elif message:
            drawing, y = _message(lanes[message[1]], lanes[message[2]], message[3], y)
            parts += drawing
        else:
            raise ValueError(f"this line of a sequence diagram is not supported: {line!r}")
        words += [match[3] for match in (note, message) if match]
    for x, title in zip(lanes.values(), titles, strict=True):
        parts.insert(0, f'<line class="lane" x1="{x}" x2="{x}" y1="38" y2="{y}"/>')
        parts.append(f'<rect x="{x - 96}" y="6" width="192" height="30" rx="6"/>')
        parts.append(f'<text x="{x}" y="26" text-anchor="middle">{escape(title)}</text>')
    return _figure(parts, 220 + LANE * (len(lanes) - 1), y + 4, f"Steps: {'; '.join(words)}.")


def _message(start: float, end: float, text: str, y: int) -> tuple[list[str], int]:
    """Return the parts of a message, or of a step of one participant, and the next position."""
    lines = wrap(text, LETTERS)
    own, y = start == end, y + 8
    x, anchor = (start + 10, "start") if own else ((start + end) / 2, "middle")
    if own and start > 110 + LANE:  # right of the last lane there is no room for the text
        x, anchor = start - 10, "end"
    parts = [f'<text x="{x}" y="{y + LINE * (k + 1) - 4}" text-anchor="{anchor}">{escape(line)}</text>'
             for k, line in enumerate(lines)]  # fmt: skip
    y += LINE * len(lines) + 4
    if own:
        parts.append(f'<circle class="head" cx="{start}" cy="{y - 4 - LINE * len(lines) / 2}" r="4"/>')
        return parts, y
    way = 1 if end > start else -1
    parts.append(f'<path class="arrow" d="M {start} {y} H {end - 8 * way}"/>')
    parts.append(f'<path class="head" d="M {end} {y} l {-9 * way} -5 v 10 z"/>')
    return parts, y + 6


def _figure(parts: list[str], width: float, height: float, words: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px; min-width:{0.65 * width:.0f}px"'
    drawing = f'<svg {size} role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    return f'<figure class="messages">{drawing}</figure>'
