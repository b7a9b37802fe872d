"""A FLARE driver for Unix sockets, so that a site's own processes connect without an open port.

NVIDIA FLARE imports the files of this folder, and finds the driver by the scheme of an address.
"""
