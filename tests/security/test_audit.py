"""The audit of dependencies fails for a known vulnerability, and reports if no database could be reached."""

from tests.security.audit import summary

SKIPPED = {"name": "torch", "skip_reason": "not found"}
FINE = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "jinja2", "version": "3.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.5"]}]}


def test_a_known_vulnerability_fails():
    assert summary([SKIPPED, FINE, BAD]) == (
        ["jinja2 3.0: PYSEC-1, fixed in 3.1.5", "2 of 3 packages audited, 1 known vulnerabilities."], 1,
    )  # fmt: skip


def test_nothing_known_is_fine():
    assert summary([SKIPPED, FINE]) == (["1 of 2 packages audited, 0 known vulnerabilities."], 0)


def test_without_a_database_it_says_so():
    assert summary([SKIPPED]) == (["No vulnerability database could be reached: none of 1 packages was audited."], 0)
