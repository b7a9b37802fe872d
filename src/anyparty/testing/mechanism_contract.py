"""Check a missingness mechanism for mistakes that a comparison would not show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyparty.core.seeds import Seeds
from anyparty.data.missingness import BlockArrays, DrawnMask, Mechanism, described
from anyparty.errors import ConfigError, blamed

ROWS = 600  # more than the 500 labelled rows of the published setting with few labels
SHOWN = "DrawnMask(observed, redrawn)"


def check_mechanism(mechanism: Mechanism, *, parties: tuple[int, ...] = (3, 1, 2, 5)) -> None:
    """Check a mechanism with several numbers of rows and parties, on random normalised blocks.

    Args:
        mechanism: an object with ``name`` and ``draw``.
        parties: the numbers of parties K with which it is tried; numbers that it refuses with a ``ConfigError`` are
            left out.

    Raises:
        ConfigError: the mechanism fails a check, or refuses all numbers of parties; the message names the mistake and
            its remedy.

    """
    if isinstance(mechanism, type) or not callable(getattr(mechanism, "draw", None)):
        raise ConfigError(f"check_mechanism: expected an object with a function draw, got {mechanism!r}")
    title = f"{type(mechanism).__name__}, draw:"
    if not isinstance(getattr(mechanism, "name", None), str):
        raise ConfigError(f"{title[:-7]}: it has no name, by which records and tables call it: write "
                          'name: ClassVar[str] = "mine"')  # fmt: skip
    try:
        described(mechanism)
    except TypeError:
        raise ConfigError(f"{title[:-7]}: its parameters cannot be recorded: make it a dataclass, with "
                          "@dataclass(frozen=True, kw_only=True)") from None  # fmt: skip
    refused: list[ConfigError] = []
    for K in parties:
        for n in (ROWS, 1, 0):
            trial = _Trial(mechanism, title, n, K, _blocks(n, K))
            try:
                trial.draw()
            except _CheckError:
                raise
            except ConfigError as error:
                refused.append(error)
                continue
            for check in CHECKS:
                check(trial)
    if len(refused) == 3 * len(parties):
        raise refused[0]


def _blocks(n: int, K: int) -> list[Any]:
    rng = Seeds(0).numpy("blocks", str(K))
    return [rng.normal(size=(n, k + 2)).astype(np.float32) for k in range(K)]


@dataclass(frozen=True)
class _Trial:
    """A mechanism, the beginning of error messages, and blocks of n rows for K parties."""

    mechanism: Mechanism
    title: str
    n: int
    K: int
    blocks: BlockArrays

    def draw(self, seed: int = 0, name: str = "train") -> DrawnMask:
        """Draw a mask; other errors than ``ConfigError`` become one."""
        try:
            drawn: object = self.mechanism.draw(Seeds(seed), name, self.n, self.K, self.blocks)
        except ConfigError:
            raise
        except Exception as error:
            raise self.error(f"fails: {blamed(error)}", "assume no number of rows or parties") from error
        if not isinstance(drawn, DrawnMask):
            raise self.error(f"returns a {type(drawn).__name__}", f"return {SHOWN} of anyparty.data.missingness")
        return drawn

    def error(self, mistake: str, remedy: str) -> ConfigError:
        many = f"{self.n} row{'s' * (self.n != 1)} of {self.K} part{'y' if self.K == 1 else 'ies'}"
        return _CheckError(f"{self.title} {mistake} ({many}): {remedy}")


class _CheckError(ConfigError):
    """An error of a check, as against one by which a mechanism refuses a number of parties."""


def _check_form(trial: _Trial) -> None:
    """The mask is bool [n, K], and labels are bool [n]."""
    drawn = trial.draw()
    observed, labeled, wanted = drawn.observed, drawn.labeled, (trial.n, trial.K)
    if not isinstance(observed, np.ndarray) or observed.shape != wanted or observed.dtype != np.bool_:
        got = f"{list(observed.shape)} of {observed.dtype}" if isinstance(observed, np.ndarray) else type(observed)
        raise trial.error(f"expected observed to be bool {list(wanted)}, got {got}", "compare with >= or <, which "
                          "gives true where a party has the row")  # fmt: skip
    if labeled is not None and (labeled.shape != (trial.n,) or labeled.dtype != np.bool_):
        raise trial.error(f"expected labeled to be bool [{trial.n}], got {list(labeled.shape)} of {labeled.dtype}",
                          "mark the rows that keep their label")  # fmt: skip


def _check_repeated(trial: _Trial) -> None:
    """Equal seeds give equal masks, also between other calls."""
    one = trial.draw()
    np.random.seed(7)  # noqa: NPY002 - a mechanism must not read this generator
    trial.draw(seed=1)
    if not np.array_equal(one.observed, trial.draw().observed):
        raise trial.error("two calls with equal seeds give different masks", "draw from "
                          "missingness.stream(seeds, name), and from no other generator")  # fmt: skip


def _check_streams(trial: _Trial) -> None:
    """Masks for training and test are drawn independently, unless nothing is random."""
    masks = [trial.draw(seed, name).observed for seed, name in ((0, "train"), (1, "train"), (0, "test"))]
    same = [np.array_equal(masks[0], each) for each in masks[1:]]
    if trial.n == ROWS and same[0] != same[1]:
        which = ("the seed", "seeds") if same[0] else ("the name of the stream", "name")
        raise trial.error(f"the mask does not depend on {which[0]}", "draw from missingness.stream(seeds, name), which "
                          f"reads {which[1]}")  # fmt: skip


def _check_rows(trial: _Trial) -> None:
    """Every row has a party, unless the mechanism keeps empty rows on purpose."""
    empty = trial.draw().empty
    inner = getattr(trial.mechanism, "rest", trial.mechanism)
    if empty and not getattr(inner, "keep_empty", False):
        raise trial.error(f"no party has {empty} of the rows", "draw with missingness.independent, which draws such "
                          "rows again, or give the mechanism a parameter keep_empty")  # fmt: skip


def _check_blocks(trial: _Trial) -> None:
    """The blocks are not changed."""
    before = [block.copy() for block in trial.blocks]
    trial.draw()
    if not all(map(np.array_equal, before, trial.blocks)):
        raise trial.error("it changes the blocks", "compute a new array")


CHECKS: tuple[Callable[[_Trial], None], ...] = (
    _check_form, _check_repeated, _check_streams, _check_rows, _check_blocks,
)  # fmt: skip
