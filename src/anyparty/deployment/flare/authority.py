"""The federation's certificate authority, created by FLARE's command ``nvflare cert init``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from anyparty.errors import ConfigError, needing

PROJECT, PROFILE = "anyparty", "profile.json"
DAYS = 360  # validity of the authority and its certificates


def make(authority: Path, host: str, port: int, scheme: str) -> None:
    """Create a certificate authority in a new folder that only its user may enter.

    Raises:
        ConfigError: FLARE is not installed, or reports an error.
    """
    authority.mkdir(mode=0o700)
    profile = {"name": PROJECT, "scheme": scheme, "connection_security": "mtls",
               "server": {"host": host, "fed_learn_port": port, "admin_port": port}}  # fmt: skip
    (authority / PROFILE).write_text(json.dumps(profile, indent=1), encoding="utf-8")  # JSON is YAML
    nvflare("cert", "init", "--profile", authority / PROFILE, "-o", authority, "--valid-days", DAYS)


def nvflare(*words: object) -> dict[str, Any]:
    """Run a command of FLARE and return the data of its answer.

    Raises:
        ConfigError: FLARE is not installed, or reports an error.
    """
    with needing("flare", "a federation of processes"):
        importlib.import_module("nvflare")
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words), "--format", "json"]
    ran = subprocess.run(  # noqa: S603 - our own command  # nosec B603
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    try:
        answer = json.loads(ran.stdout.strip().splitlines()[-1])
        if ran.returncode == 0 and answer["status"] == "ok":
            return dict(answer["data"])
        why = " ".join(str(answer[key]) for key in ("message", "detail", "hint") if answer.get(key))
    except (ValueError, LookupError, TypeError):
        why = (ran.stderr.strip().splitlines() or ["no answer"])[-1]
    called = " ".join(str(word) for word in words[:2] if str(word).isalpha())
    raise ConfigError(f"'nvflare {called}' reports: {why}")
