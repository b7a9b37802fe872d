"""Run every check for every case."""

import pytest

from anyparty.methods.method_registry import METHODS
from tests.methods.cases import CASES
from tests.methods.checks import CHECKS

ONCE = {"apc", "vfedtrans"}
ALONE = {
    "gradients equal the joint reference": "its networks train one after another, each in a stage of its own: "
    "test_apc.py and test_vfedtrans.py hold every loss to a slow version",
    "resumed equals uninterrupted": "stages of a single step have no fifth epoch: test_apc.py stops it in each stage",
    "one row at a time": "a stage of a single step changes no network, and no estimator is fitted to one row",
    "a party that leaves is missed and not replaced": "later stages work on what an earlier one kept, and prediction "
    "asks nobody: see test_apc.py",
}
"""Why methods with one exchange need not pass a check."""

TREES = {
    "gradients equal the joint reference": "trees have no gradients: test_boosting.py recomputes its residuals",
    "resumed equals uninterrupted": "stages of a single step have no fifth epoch: test_boosting.py stops it in each",
    "one row at a time": "of one row, trees of two stages need not differ",
    **dict.fromkeys(("no labels in the batch", "unlabelled rows in a batch teach nothing"),
                    "each stage is one step, on exactly the labelled rows that the active party chooses"),
    "what is no longer a number is named": "it has no optimizer, and its trees return finite numbers",
}  # fmt: skip
"""Why boosting need not pass a check."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("gradients equal the joint reference", "laser, encoders that draw"):
        "its encoders drop units at random; the reference, which takes rows one at a time, would drop others",
    **{("what is no longer a number is named", title): "its encoders and heads are bounded: the loss is finite"
       for title in ("standard with own modules", "combinatorial with own modules", "laser with own modules")},
    **{("one row at a time", case.title): "it normalises over the rows of a batch: from one row it learns nothing"
       for case in CASES if case.of == "fedhssl" or "pretrain" in case.parameters},
    **{("a party that leaves is missed and not replaced", case.title):
       "a party without rows is still one of those whose top encoders are averaged, one that is gone is not"
       for case in CASES if case.of == "fedhssl"},
    ("a party that leaves is missed and not replaced", "standard, pretrained"):
        "in its first stage every party works alone, and nobody is missed; its second is that of standard",
    **{("unlabelled rows in a batch teach nothing", case.title): "it draws other samples for a batch of another size"
       for case in CASES if case.of.startswith("false-vfl")},
    **{("unlabelled rows in a batch teach nothing", case.title): "they do: that is what it is for"
       for case in CASES if "pseudo" in case.title},
    **{(check, title): "a row that a party lacks tells of the row (MNAR), a party that is not there tells nothing"
       for check in ("absent parties are not asked", "a party that leaves is missed and not replaced")
       for title in ("false-vfl-2", "false-vfl-2 of numbers", "false-vfl-2, much is negligible",
                     "false-vfl-2, empty cells")},
    **{(check, case.title): reason for case in CASES if case.of in ONCE for check, reason in ALONE.items()},
    **{(check, case.title): reason for case in CASES if case.of == "boosting" for check, reason in TREES.items()},
    ("no message holds a cell a label or an id", "boosting by bins"):
        "bins are whole numbers, which show columns: test_boosting.py reads the message",
    ("only declared messages cross", "apc, nothing shared"): "without distillation nothing crosses",
    **{(check, "apc on joint embeddings"): "its classifier reads what earlier stages kept"
       for check in ("no labels in the batch", "unlabelled rows in a batch teach nothing")},
    **{("one party", case.title): "it refuses a federation without a passive party: nobody to learn from"
       for case in CASES if case.of in ONCE and case.title != "apc, nothing shared"},
    **{("finds a signal planted at a passive party", case.title): "what the active party's columns do not tell at all, "
       "they do not tell after distillation either" for case in CASES
       if case.of in ONCE and case.title != "apc on joint embeddings"},
    **{("no message holds a cell a label or an id", case.title): "masked matrices cross in double precision, with "
       "seeds and sizes; test_vfedtrans.py reads them all" for case in CASES if case.of == "vfedtrans"},
    ("no message holds a cell a label or an id", "apc, mae, half precision, a head"):
        "half precision has so few numbers that some are equal by chance, and another dtype",
}  # fmt: skip
"""(check, case): the reason why this case need not pass this check."""

LONG = {
    "learns nothing from shuffled labels", "finds a signal planted at a passive party", "resumed equals uninterrupted",
}  # fmt: skip


HEAVY = ("false-vfl", "fedhssl")  # their LONG checks take 10 to 35 s each


QUICK = {*METHODS, "laser with own modules"}


def is_slow(check: str, title: str) -> bool:
    """Return whether a check of a case runs with the slow tests: all checks of variants, and the longest ones."""
    return title not in QUICK or (check in LONG and title.startswith(HEAVY))


SAMPLED = {
    "laser at label holders", "laser, pseudo-labels", "laser, pretrained", "standard with a server", "ensemble, soft",
    "apc on joint embeddings", "combinatorial of numbers", "fedhssl by MoCo", "false-vfl-2 of numbers",
}  # fmt: skip


def is_repeated(check: str, title: str) -> bool:
    """Return whether a training check of a variant is left out, because ``SAMPLED`` has one variant of each kind.

    Labels reach a method in the same way in all its variants, and heavy methods save what all their variants save.
    """
    if title in QUICK | SAMPLED or "own" in title:
        return False
    return check == "learns nothing from shuffled labels" or (check in LONG and title.startswith(HEAVY))


PAIRS = [
    pytest.param(
        check, case, id=f"{check}-{case.title}",
        marks=[pytest.mark.slow] if is_slow(check, case.title) else [],
    )
    for check in CHECKS
    for case in CASES
    if (check, case.title) not in EXCEPTIONS and not is_repeated(check, case.title)
]  # fmt: skip


@pytest.mark.parametrize(("check", "case"), PAIRS)
def test(check, case, tmp_path):
    CHECKS[check](case, tmp_path)


def test_every_method_is_a_case():
    assert {case.title for case in CASES if case.title == case.of} >= METHODS.keys()
    assert len({case.title for case in CASES}) == len(CASES)


def test_exceptions_name_existing_methods_and_checks_with_a_reason():
    titles = {case.title for case in CASES}
    for (check, title), reason in EXCEPTIONS.items():
        assert check in CHECKS, check
        assert title in titles, title
        assert len(reason) > 20
