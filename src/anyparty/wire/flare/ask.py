"""What a federation's folder says, and what its server answers."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from anyparty.config.base import Settings
from anyparty.errors import ConfigError, RunError
from anyparty.wire.flare.reach import Gate, await_server, check_certificate

WHOLE = {"submit", "abort"}  # not ended in the middle by a terminal's Ctrl-C: nobody would know how it went

AWAY = "NoConnection"  # FLARE's name for it


class _About(Settings):
    active: str
    parties: list[str]
    host: str
    port: int
    scheme: str


def about(folder: Path) -> dict[str, Any]:
    """Return what ``federation.toml`` says.

    Raises:
        ConfigError: there is none, or it was changed.
    """
    path = folder / "federation.toml"
    if not path.exists():
        raise ConfigError(f"{folder} holds no federation; make one with 'anyparty federate init'")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: this is not TOML ({error}); put back what 'anyparty federate init' wrote") from None
    said: dict[str, Any] = _About.of(values, str(path)).model_dump()
    return said


def desk(folder: Path, command: str, /, **asked: Any) -> dict[str, Any]:
    """Ask the server for something with the administrator's kit, in a process of its own.

    Raises:
        ConfigError: there is no federation in the folder, or the administrator's certificate does not do.
        RunError: the server does not answer, or says why not.
    """
    about(folder)
    gate = Gate.of((folder / "kits" / "admin").resolve())
    check_certificate(gate)
    await_server(gate)
    kit, limit = (folder / "kits" / "admin").resolve(), float(asked.get("timeout_s", 10.0)) + 50.0
    words = [sys.executable, "-m", "anyparty.wire.flare.desk", str(kit), command, json.dumps(asked)]
    try:
        ran = subprocess.run(  # noqa: S603 - our own command  # nosec B603
            words, capture_output=True, text=True, timeout=limit, check=False, cwd=kit,
            start_new_session=command in WHOLE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError(f"the server of {folder} did not answer within {limit:g} s") from None
    try:
        said: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise RunError(f"the administrator's desk failed: {ran.stderr.strip()[-500:]}") from None
    if str(said.get("error", "")).startswith(AWAY):
        raise RunError(f"the server of {folder} does not answer any more: is the active party's site running there "
                       f"(anyparty party start KIT)? A training that it was at goes on with --resume")  # fmt: skip
    if "error" in said:
        raise RunError(f"the server of {folder} said: {said['error']}")
    return said
