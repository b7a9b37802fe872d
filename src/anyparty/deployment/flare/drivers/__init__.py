"""A FLARE driver for Unix sockets, so that a site's own processes connect without an open port.

NVIDIA FLARE finds it by its name.
"""
