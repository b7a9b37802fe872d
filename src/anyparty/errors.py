"""Every error that anyparty raises on purpose.

    AnypartyError
    ├── UserError (ValueError)      something the user can mend; the command line prints the sentence, no stack trace
    │   ├── ConfigError             settings: unknown name, value out of range, key that does not exist
    │   │   ├── MissingExtra (ModuleNotFoundError)  packages that are not installed, and the extra that brings them
    │   │   └── CodeNotAllowed      a file names code that the user has not allowed in this call
    │   ├── TableError              one party's table: file, column, cell
    │   ├── AlignmentError          several parties' tables together: no overlap, two parties with one name
    │   ├── ModelError              a saved model or run: absent, truncated, foreign, of another version, in the way
    │   │   └── NotGiven            a method or a network of the user's own, which no file holds
    │   ├── ResumeError             a run that cannot be resumed as asked
    │   ├── PredictionError         a request for predictions that cannot be met
    │   └── StorageError            a file that cannot be written: disk full, no permission
    └── RunError (RuntimeError)     something that happened while parties worked together
        ├── Incomplete              a training that ended without a party's part of the model, or without train.require
        ├── MessageError            a message that is not what its method declares: who sent what, what was expected
        │   └── ExtremeMessage      its numbers are far beyond what its sender has sent before (also a Diverged)
        ├── PartyLost               a party left or did not answer in time
        ├── Deadlock                every party waits for a message that nobody will send
        ├── Diverged                the loss is no longer a number
        └── Stopped                 somebody ended the run, or a party's site

    AnypartyWarning (UserWarning)   something to look at that stops nothing

A sentence names the party, the file, the column or the step, what was expected, what came, and what to do.
"""

from __future__ import annotations

import difflib
import inspect
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

LISTED = 40  # names in a sentence: a wide table has thousands


class AnypartyError(Exception):
    """The root of the tree above."""


class UserError(AnypartyError, ValueError):
    """Something the user can mend."""


class ConfigError(UserError):
    """A setting that does not exist or is out of range."""


class MissingExtra(ConfigError, ModuleNotFoundError):  # noqa: N818 - what is missing
    """A package that only some uses of anyparty need is not installed."""


class CodeNotAllowed(ConfigError):  # noqa: N818 - what is missing
    """A file names code that the user has not allowed in this call."""


class TableError(UserError):
    """One party's table cannot be used as it is."""


class AlignmentError(UserError):
    """The parties' tables do not fit together."""


class ModelError(UserError):
    """A saved model or run cannot be read."""


class NotGiven(ModelError):  # noqa: N818 - what is missing
    """A method or a network of the user's own, which no file holds, was not given.

    ``lacks`` says so, ``argument`` is how it is given.
    """

    def __init__(self, lacks: str, argument: str) -> None:
        super().__init__(f"{lacks}; give it in Python, Model.load(folder, {argument}), also to evaluate_run and "
                         f"predict_run of anyparty.run.runs; if the run's settings name it, they load it with "
                         f"allow_code=('MODULE',)")  # fmt: skip
        self.lacks, self.argument = lacks, argument


class ResumeError(UserError):
    """A run cannot be resumed as asked."""


class PredictionError(UserError):
    """A request for predictions cannot be met."""


class StorageError(UserError):
    """A file cannot be written."""


class RunError(AnypartyError, RuntimeError):
    """Something happened while the parties worked together."""


class MessageError(RunError):
    """A message is not what its method declares."""


ENDED = "the job was ended"  # why a party left that was told to: the others will be, too


class PartyLost(RunError):  # noqa: N818 - an event that methods handle, not only a failure
    """A party left, or did not answer in time."""

    def __init__(self, party: str, why: str) -> None:
        super().__init__(f"party {party!r} is gone: {why}")
        self.party, self.why = party, why


class Incomplete(RunError):  # noqa: N818 - what the training is
    """Training ended, but a party's part of the model was not saved, or ``train.require`` was not met."""


class Deadlock(RunError):  # noqa: N818 - the field's word
    """Every party waits for a message that nobody will send."""


class Diverged(RunError):  # noqa: N818 - the field's word
    """The loss is no longer a number."""


class ExtremeMessage(MessageError, Diverged):  # noqa: N818 - what was refused
    """A message's numbers are far beyond what its sender has sent before: they are wrong, or training diverges."""


class Stopped(RunError):  # noqa: N818 - somebody's wish, no failure
    """The run was ended from outside, at this party or at all."""


class AnypartyWarning(UserWarning):
    """Something to look at, though nothing stopped."""


EXTRAS = {
    "flare": ("cryptography", "nacl", "nvflare", "psutil"),
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
}


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Say of ``what`` cannot do without a package of an extra that it needs it; a block of imports, or a decorator.

    Raises:
        MissingExtra: such a package is not installed.

    >>> with needing("serve", "the prediction service"):
    ...     raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
    Traceback (most recent call last):
        ...
    anyparty.errors.MissingExtra: the prediction service needs an extra: pip install 'anyparty[serve]'

    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtra) or (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise MissingExtra(f"{what} needs an extra: pip install 'anyparty[{extra}]'") from None


@contextmanager
def warned(say: Callable[[str], None]) -> Iterator[None]:
    """Hand our own warnings to ``say`` as the sentences they are; anybody else's are shown as Python shows them."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def told(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
            line: str | None = None,
        ) -> None:  # fmt: skip
            if issubclass(category, AnypartyWarning):
                say(str(message))
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = told
        yield


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean X?'`` for the nearest known name, or the list of them, up to ``LISTED``.

    >>> nearest("lazer", ["laser", "local"])
    "; did you mean 'laser'?"
    >>> nearest("zzz", ["laser", "local"])
    '; known are: laser, local'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"; known are: {', '.join(known[:LISTED])}{more}"


NOT_THE_USERS = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def blamed(error: BaseException) -> str:
    """Say in a line what went wrong in a user's own code, and in which line of it.

    >>> blamed(ValueError("no such width"))
    'ValueError: no such width'
    """
    text = (str(error).strip().splitlines() or [""])[0]
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        text, frames = error.msg, [*frames, (error.filename or "<string>", error.lineno)]
    theirs = [f"{file}:{line}: " for file, line in frames if not file.startswith(("<", *NOT_THE_USERS))]
    return f"{theirs[-1] if theirs else ''}{type(error).__name__}{text and f': {text}'}"


_HEARING: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar("hearing", default=())


@contextmanager
def hearing(hear: Callable[[str], None]) -> Iterator[None]:
    """Hand every remark to ``hear``, also those that Python shows once and no more."""
    token = _HEARING.set((*_HEARING.get(), hear))
    try:
        yield
    finally:
        _HEARING.reset(token)


def note(sentence: str) -> None:
    """Tell those that are ``hearing``, and warn of nothing."""
    for hear in _HEARING.get():
        hear(sentence)


def remark(sentence: str) -> None:
    """Note it, and warn of the line of the user's own code that led here, or if none did, of the one that warns."""
    note(sentence)
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", *NOT_THE_USERS)):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, AnypartyWarning, stacklevel=2 if frame is None else level)


def some(items: Iterable[object], most: int = 3) -> str:
    """Return the first few items as text, saying how many more there are.

    >>> some([1, 2, 3, 4, 5])
    "'1', '2', '3' and 2 more"
    """
    listed = [repr(str(item)) for item in items]
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")
