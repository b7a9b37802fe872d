"""The exceptions, warnings and notices of anyparty, and helpers for their messages.

    AnypartyError
    ├── UserError (ValueError)      a user's mistake; the command line prints it without a stack trace
    │   ├── ConfigError             a setting or a name does not exist, or a value is out of range
    │   │   ├── MissingExtra (ModuleNotFoundError)  a package is not installed; the message names its extra
    │   │   └── CodeNotAllowed      a file refers to code that the caller has not allowed
    │   ├── TableError              one party's table cannot be used: its file, a column or a cell is wrong
    │   ├── AlignmentError          the parties' tables do not fit together: no overlap, two parties with the same name
    │   ├── ModelError              a saved model or run is absent, damaged, of another version or already there
    │   │   └── NotGiven            a custom method or network, which no file stores, is missing
    │   ├── ResumeError             a run cannot be resumed
    │   ├── PredictionError         a request for predictions cannot be met
    │   └── StorageError            a file cannot be written: disk full, no permission
    └── RunError (RuntimeError)     a failure while the parties worked together
        ├── Incomplete              training ended without a party's networks, or train.require was not met
        ├── MessageError            a message does not match its declaration: the error names the differences
        │   └── ExtremeMessage      a message's numbers far exceed the sender's earlier ones (also a Diverged)
        ├── PartyLost               a party left or did not answer in time
        ├── Deadlock                every party waits for a message that no party will send
        ├── Diverged                the loss is not a number any more
        └── Stopped                 a user or another program stopped the run or a party's site

    AnypartyWarning (UserWarning)   a possible mistake that does not stop the run

The text of an error names the party, the file, the column or the step, the expected and the found value, and the
remedy. The attributes ``code``, ``setting``, ``party`` and ``file`` are for programs.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

LISTED = 40  # maximum number of names in an error message


class AnypartyError(Exception):
    """The base class of all anyparty errors.

    Programs should read the attributes instead of the message, because sentences change. An attribute is "" if the
    error has no such place.

    Attributes:
        code: a short name of the mistake, such as "unknown-setting", if the class of the error does not say it.
        setting: the setting or argument that caused the error, such as "train.epochs".
        party: the party whose table, message or absence caused the error.
        file: the file or folder that caused the error.
    """

    def __init__(self, *args: object, code: str = "", setting: str = "", party: str = "", file: str = "") -> None:
        super().__init__(*args)
        self.code, self.setting, self.party, self.file = code, setting, party, file


class UserError(AnypartyError, ValueError):
    """A mistake that the user can correct."""


class ConfigError(UserError):
    """A setting does not exist, or its value is out of range."""


class MissingExtra(ConfigError, ModuleNotFoundError):  # noqa: N818 - named after the missing extra
    """An optional package is not installed."""


class CodeNotAllowed(ConfigError):  # noqa: N818 - named after the missing permission
    """A file refers to code that the caller has not allowed."""


class TableError(UserError):
    """One party's table cannot be used."""


class AlignmentError(UserError):
    """The parties' tables do not fit together."""


class ModelError(UserError):
    """A saved model or run cannot be read."""


class NotGiven(ModelError):  # noqa: N818 - named after the missing object
    """A custom method or network, which no file stores, is missing.

    ``lacks`` describes the missing object. ``argument`` is the argument of ``Model.load`` that passes the object.
    """

    def __init__(self, lacks: str, argument: str) -> None:
        super().__init__(
            f"{lacks}; give it in Python, Model.load(folder, {argument}), also to evaluate_run and "
            f"predict_run of anyparty.api.runs; if the run's settings name it, they load it with "
            f"allow_code=('MODULE',)"
        )
        self.lacks, self.argument = lacks, argument


class ResumeError(UserError):
    """A run cannot be resumed as requested."""


class PredictionError(UserError):
    """A request for predictions cannot be met."""


class StorageError(UserError):
    """A file cannot be written."""


class RunError(AnypartyError, RuntimeError):
    """A failure while the parties worked together."""


class MessageError(RunError):
    """A message does not match its method's declaration."""


ENDED = "the job was ended"  # the reason for which a party leaves if the whole job was stopped


class PartyLost(RunError):  # noqa: N818 - also an event that methods handle
    """A party left, or did not answer in time."""

    def __init__(self, party: str, why: str) -> None:
        super().__init__(f"party {party!r} is gone: {why}", party=party)
        self.why = why


class Incomplete(RunError):  # noqa: N818 - named after the state of the training
    """Training ended, but a party's networks were not saved, or ``train.require`` was not met."""


class Deadlock(RunError):  # noqa: N818 - the common term for this failure
    """Every party waits for a message that no party will send."""


class Diverged(RunError):  # noqa: N818 - the common term for this failure
    """The loss is not a number any more."""


class ExtremeMessage(MessageError, Diverged):  # noqa: N818 - named after the rejected message
    """A message's numbers far exceed its sender's earlier numbers; the message is wrong, or training diverges."""


class Stopped(RunError):  # noqa: N818 - a request, not a failure
    """A user or another program stopped the run, at this party or at all parties."""


class AnypartyWarning(UserWarning):
    """A possible mistake that does not stop the run."""


@contextmanager
def locating(*, setting: str = "", party: str = "", file: str = "") -> Iterator[None]:
    """Set the attributes of anyparty errors that a ``with`` block raises without them.

    >>> try:
    ...     with locating(party="bank"):
    ...         raise TableError("there is no column 'age'")
    ... except TableError as error:
    ...     error.party
    'bank'
    """
    try:
        yield
    except AnypartyError as error:
        error.setting, error.party, error.file = error.setting or setting, error.party or party, error.file or file
        raise


EXTRAS = {
    "flare": ("cryptography", "nacl", "nvflare", "psutil"),
    "tune": ("optuna",),
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
}


@contextmanager
def needing(extra: str, feature: str) -> Iterator[None]:
    """Convert the import error of a package that belongs to the extra ``extra`` to :class:`MissingExtra`.

    Use this function in a ``with`` statement around imports, or as a decorator.

    Raises:
        MissingExtra: the package is not installed. The message names ``feature`` and the extra.

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
        raise MissingExtra(f"{feature} needs an extra: pip install 'anyparty[{extra}]'") from None


@contextmanager
def warned(say: Callable[[str], None]) -> Iterator[None]:
    """Call ``say`` with the text of each anyparty warning in a ``with`` block; other warnings appear as usual."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def redirect(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
            line: str | None = None,
        ) -> None:  # fmt: skip
            if issubclass(category, AnypartyWarning):
                say(str(message))
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = redirect
        yield


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the end of an error message, ``'; did you mean X?'``, with the known name X that is nearest to ``name``.

    A known name that differs from ``name`` only in case is preferred.  If no known name is near, the text lists up to
    ``LISTED`` known names.

    >>> nearest("lazer", ["laser", "local"])
    "; did you mean 'laser'?"
    >>> nearest("zzz", ["laser", "local"])
    '; known are: laser, local'
    """
    known = sorted(known)
    same = [each for each in known if each.casefold() == str(name).casefold()]
    close = same or difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"; known are: {', '.join(known[:LISTED])}{more}"


def continued(message: str, clause: str) -> str:
    """Return a message followed by a clause: as a new sentence after a question mark, else after a semicolon.

    >>> continued("no column 'agee'; did you mean 'age'?", "rename it")
    "no column 'agee'; did you mean 'age'? Rename it"
    >>> continued("no column 'x'", "rename it"), continued("no column 'x'", "")
    ("no column 'x'; rename it", "no column 'x'")
    """
    if not clause:
        return message
    if not message.endswith("?"):
        return f"{message}; {clause}"
    return f"{message} {clause[0].upper() if re.match('[a-z]+[ ,]', clause) else clause[0]}{clause[1:]}"


LIBRARY_PATHS = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def blamed(error: BaseException) -> str:
    """Describe an error in the user's code in one line, with the file and the line number if they are known.

    >>> blamed(ValueError("no such width"))
    'ValueError: no such width'
    """
    text = (str(error).strip().splitlines() or [""])[0]
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        text, frames = error.msg, [*frames, (error.filename or "<string>", error.lineno)]
    places = [f"{file}:{line}: " for file, line in frames if not file.startswith(("<", *LIBRARY_PATHS))]
    return f"{places[-1] if places else ''}{type(error).__name__}{text and f': {text}'}"


_LISTENERS: ContextVar[tuple[Callable[[str], None], ...]] = ContextVar("hearing", default=())


@contextmanager
def remarks_to(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with every sentence that code in a ``with`` block passes to ``note`` or ``remark``.

    A sentence that ``remark`` gets several times is passed on every time, although Python shows a repeated warning only
    once.
    """
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def note(sentence: str) -> None:
    """Pass a sentence to all functions that ``remarks_to`` has registered, without a warning."""
    for listener in _LISTENERS.get():
        listener(sentence)


def remark(sentence: str) -> None:
    """Pass a sentence to all functions that ``remarks_to`` has registered, and issue it as a warning.

    The warning points to the innermost line of user code, or to the call of ``remark`` if no user code is running.
    """
    note(sentence)
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen", *LIBRARY_PATHS)):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, AnypartyWarning, stacklevel=2 if frame is None else level)


def some(items: Iterable[object], most: int = 3) -> str:
    """Return the first ``most`` items as text, and the number of the remaining items.

    >>> some([1, 2, 3, 4, 5])
    "'1', '2', '3' and 2 more"
    """
    listed = [repr(str(item)) for item in items]
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")
