"""The interface of a method, the registry, and the methods themselves: one paper, one file.

Nothing here loops over epochs, opens a socket or writes a file.
"""
