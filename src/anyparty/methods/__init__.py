"""The interface of a method, the registry of methods, and the methods themselves. Each paper has its own file.

No code in this package loops over epochs, opens a socket or writes a file.
"""
