"""Every check, for every method and for what is special about some of them."""

import pytest

from anyparty.methods.table import METHODS
from tests.methods.checks import CASES, CHECKS

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("gradients equal the joint reference", "laser, encoders that draw"):
        "its encoders drop units at random; the reference, which takes rows one at a time, would drop others",
    **{("what is no longer a number is named", title): "its encoders and heads are bounded: the loss is finite"
       for title in ("standard with own modules", "combinatorial with own modules", "laser with own modules")},
}  # fmt: skip
"""(check, case): the reason why this case need not pass this check."""

LONG = {"learns nothing from shuffled labels", "finds a signal planted at a passive party"}
PAIRS = [
    pytest.param(
        check, case, id=f"{check}-{case.title}",
        marks=[pytest.mark.slow] if check in LONG and case.title not in METHODS and "own" not in case.title else [],
    )
    for check in CHECKS
    for case in CASES
    if (check, case.title) not in EXCEPTIONS
]  # fmt: skip


@pytest.mark.parametrize(("check", "case"), PAIRS)
def test(check, case, tmp_path):
    CHECKS[check](case, tmp_path)


def test_every_method_is_a_case():
    assert {case.title for case in CASES if not case.parameters and not case.world} >= METHODS.keys()
    assert len({case.title for case in CASES}) == len(CASES)


def test_exceptions_name_what_there_is_and_say_why():
    titles = {case.title for case in CASES}
    for (check, title), reason in EXCEPTIONS.items():
        assert check in CHECKS, check
        assert title in titles, title
        assert len(reason) > 20
