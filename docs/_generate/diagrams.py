"""Diagrams of methods: senders, receivers and messages, drawn as SVG from the messages that the code declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from anyparty.core.types import MessageSpec

NAMES = {
    "passive": "passive party", "block": "each party with columns", "any": "any party, or a server",
    "host": "host of the head", "active": "active party",
}  # fmt: skip
ORDER = tuple(NAMES)
LANE, MARGIN, TOP, STEP = 250, 110, 48, 46  # pixels


def diagram(name: str) -> str:
    """Return the diagram of a method, or of the schedules, as an element of HTML.

    Raises:
        KeyError: there is no such method.
    """
    from anyparty.methods.method_registry import METHODS, method  # noqa: PLC0415 - torch takes a second
    from anyparty.methods.schedules.schedule import MESSAGES  # noqa: PLC0415

    if name == "schedules":
        return drawn("Schedules", MESSAGES)
    if name not in METHODS:
        raise KeyError(f"there is no method {name!r}")
    found = method(name).can
    return drawn(found.title, found.messages)


def drawn(title: str, messages: Sequence[MessageSpec]) -> str:
    """Draw a line for each kind of party, and an arrow for each message in the order of declaration."""
    ends = {end for message in messages for end in (message.frm, message.to)}
    lanes = {end: MARGIN + LANE * k for k, end in enumerate(each for each in ORDER if each in ends)}
    width, height = max(lanes.values()) + MARGIN, TOP + STEP * len(messages) + 16
    parts = [part for end, x in lanes.items() for part in _lane(NAMES[end], x, height)]
    for row, message in enumerate(messages):
        parts += _arrow(message, lanes[message.frm], lanes[message.to], TOP + STEP * row + 34)
    return (
        f'<figure class="messages"><svg viewBox="0 0 {width} {height}" style="max-width:{width}px; '
        f'min-width:{0.65 * width:.0f}px" role="img" '
        f'aria-label="{escape(_in_words(title, messages))}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(title)}: messages in the order of declaration. A dashed arrow is not sent in every run. "
        "The host of the head is the active party unless the method's settings say otherwise.</figcaption></figure>"
    )


def _lane(name: str, x: int, height: int) -> Iterable[str]:
    yield f'<line class="lane" x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{height}"/>'
    yield f'<rect x="{x - 96}" y="6" width="192" height="30" rx="6"/>'
    yield f'<text x="{x}" y="26" text-anchor="middle">{escape(name)}</text>'


def _arrow(message: MessageSpec, start: int, end: int, y: int) -> Iterable[str]:
    kind = "arrow some" if message.when else "arrow"
    if start == end:  # the message is between two parties of the same kind
        yield f'<path class="{kind}" d="M {start} {y - 12} h 40 v 16 h -32"/>'
        tip, way, label = start, -1, start + 48
    else:
        way = 1 if end > start else -1
        yield f'<path class="{kind}" d="M {start} {y} H {end - 8 * way}"/>'
        tip, label = end, (start + end) // 2
    head_y = y + 4 if start == end else y
    yield f'<path class="head" d="M {tip} {head_y} l {-9 * way} -5 v 10 z"/>'
    anchor = "start" if start == end else "middle"
    label_y = y if start == end else y - 7
    yield f'<text class="tag" x="{label}" y="{label_y}" text-anchor="{anchor}">{message.tag}</text>'


def _in_words(title: str, messages: Sequence[MessageSpec]) -> str:
    sent = "; ".join(
        f"{message.tag}, from {NAMES[message.frm]} to {NAMES[message.to]}" + (" in some runs" if message.when else "")
        for message in messages
    )
    return f"Messages of {title}: {sent}."
