"""The problem of a training: the task, the use of each aligned row, and each party's view of them.

``Problem`` is constructed once, at the active party. ``PartyView`` is one party's view of it, with one class for each
role of a party. ``Rows`` holds a party's tensors.

No module of this package depends on a method, a message or a settings file.
"""
