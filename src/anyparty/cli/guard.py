"""Errors and warnings as one sentence on stderr, and exit codes: 0 done, 2 something to mend, 130 stopped by Ctrl-C.

``ANYPARTY_DEBUG=1`` shows the stack trace instead of the sentence.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from anyparty.cli.interrupts import heard
from anyparty.errors import AnypartyError, warned

P = ParamSpec("P")
T = TypeVar("T")

TO_MEND = 2
STOPPED = 130


def screen(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Make a console that prints text as it is: rich would read ``:ab:`` as an emoji and ``[red]`` as a colour."""
    return Console(stderr=stderr, quiet=quiet, emoji=False, markup=False, highlight=False)


def say(sentence: str, style: str = "red") -> None:
    """Write one sentence to stderr, unwrapped, so that it can be searched for."""
    screen(stderr=True).print(Text(sentence, style=style), soft_wrap=True)


def sentences(command: Callable[P, T]) -> Callable[P, T]:
    """Let a command warn and fail with a sentence, without a line of code or a stack trace."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            heard()
            with warned(functools.partial(say, style="yellow")):
                return command(*args, **kwargs)
        except (AnypartyError, OSError) as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                screen().on_broken_pipe()  # ends quietly
            if os.environ.get("ANYPARTY_DEBUG", "0") not in {"", "0"}:
                raise
            say(_words(error))
            raise typer.Exit(TO_MEND) from None
        except KeyboardInterrupt:
            say("Stopped.", "yellow")
            raise typer.Exit(STOPPED) from None

    return guarded


def _words(error: Exception) -> str:
    """Return a sentence; one for what the system says of a file."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return (f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}; make room, let it be read and "
                f"written, or name another place")  # fmt: skip
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:  # raised while a file is written
        return f"The disk is full ({error.strerror}). Make room there, then run the command again."
    return str(error)


def _nobody_reads() -> bool:
    """Return whether stdout is a pipe whose reader has ended, as ``head`` does; an empty line asks."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False
