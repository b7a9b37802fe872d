"""Memory of this process now, and its peak since the last reset (Linux)."""

from __future__ import annotations

from pathlib import Path

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the resident bytes of this process."""
    return _bytes("VmRSS")


def reset_peak() -> None:
    """Reset the peak to the present resident bytes."""
    FORGET.write_text("5", encoding="ascii")


def peak_since_reset() -> int:
    """Return the peak of resident bytes since ``reset_peak``."""
    return _bytes("VmHWM")


def _bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
