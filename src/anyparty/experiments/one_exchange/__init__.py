"""Suites of one exchange: an active party with columns of its own, named columns at named parties, cross-validation.

``suite`` is their data, ``one`` a run, ``cells`` what runs come to, ``tables`` and ``plots`` their page.
"""
