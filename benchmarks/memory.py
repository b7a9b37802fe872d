"""How much memory this process has, and had at most since it was last asked to forget (Linux)."""

from __future__ import annotations

from pathlib import Path

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int:
    """Return the bytes that this process holds in memory."""
    return _bytes("VmRSS")


def reset_peak() -> None:
    """Let the peak begin anew, at what is held now."""
    FORGET.write_text("5", encoding="ascii")


def peak_since_reset() -> int:
    """Return the most bytes that this process has held since ``reset_peak``."""
    return _bytes("VmHWM")


def _bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
