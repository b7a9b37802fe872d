"""Exit codes of commands, error messages on stderr, and the handling of Ctrl-C and SIGTERM.

A command that fails prints one sentence.  ``ANYPARTY_DEBUG=1`` shows the stack trace instead.

While modules are imported, Ctrl-C and SIGTERM end the process at once, because an exception during an import can be
lost, or can print a stack trace of another library.  At that time the command has not begun.  After the imports, both
signals raise KeyboardInterrupt.

This module imports only the standard library at first, because ``end_at_once`` must run before slow imports.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EXIT_ERROR = 2  # after an error that the user can correct
EXIT_BEHIND = 3  # after a training in a federation, if a party's part of the model lacks the last epochs
EXIT_STOPPED = 130  # after Ctrl-C or SIGTERM

_handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}  # to install after all imports


def end_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process at once, until ``handle_signals`` is called."""
    _handlers[signal.SIGTERM] = _as_ctrl_c
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless the process ignores SIGINT
        _handlers[signal.SIGINT] = signal.default_int_handler
    _use_system_default()


def handle_signals(*, import_libraries: bool = True) -> None:
    """Import polars, PyTorch and scikit-learn, then let Ctrl-C and SIGTERM raise KeyboardInterrupt."""
    if _handlers and import_libraries:
        with contextlib.suppress(ImportError, OSError):  # later code reports a missing library
            import_module("polars")  # polars installs its own handler of Ctrl-C
            _use_system_default()
            import_module("torch")
            import_module("sklearn.linear_model")
    for number, handler in _handlers.items():
        signal.signal(number, handler)
    _handlers.clear()


def _use_system_default() -> None:
    for number in _handlers:
        signal.signal(number, signal.SIG_DFL)


def _as_ctrl_c(_: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):  # SIGINT is ignored, as in a shell's background job
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def print_error(sentence: str, style: str = "red") -> None:
    """Print a sentence to stderr on a single line, so that programs can search for it."""
    from rich.text import Text

    from anyparty.cli.console import screen

    screen(stderr=True).print(Text(sentence, style=style), soft_wrap=True)


def with_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Decorate a command: print its errors and warnings as sentences, and exit with the codes of this module."""
    return _with_errors(command, import_libraries=True)


def with_errors_at_once(command: Callable[P, T]) -> Callable[P, T]:
    """Decorate a command as ``with_errors`` does, but do not import slow libraries before the command begins."""
    return _with_errors(command, import_libraries=False)


def _with_errors(command: Callable[P, T], *, import_libraries: bool) -> Callable[P, T]:
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        import typer

        from anyparty.errors import AnypartyError, warned

        try:
            handle_signals(import_libraries=import_libraries)
            with warned(functools.partial(print_error, style="yellow")):
                return command(*args, **kwargs)
        except (AnypartyError, OSError) as error:
            if isinstance(error, BrokenPipeError) and _stdout_is_closed():
                from anyparty.cli.console import screen

                screen().on_broken_pipe()  # exits without a message
            if os.environ.get("ANYPARTY_DEBUG", "0") not in {"", "0"}:
                raise
            print_error(_sentence(error))
            raise typer.Exit(EXIT_ERROR) from None
        except KeyboardInterrupt:
            print_error("Stopped.", "yellow")
            raise typer.Exit(EXIT_STOPPED) from None

    return wrapped


def _sentence(error: Exception) -> str:
    """Return the error's message, with advice for errors of the file system."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return (f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}; free space, change its "
                f"permissions, or name another place")  # fmt: skip
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"The disk is full ({error.strerror}). Free some space, then run the command again."
    return str(error)


def _stdout_is_closed() -> bool:
    """Return True if the reader of stdout has ended, such as ``head`` in a pipe."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False
