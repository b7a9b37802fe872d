"""NVIDIA FLARE: provisioning, certificates, site processes, jobs and the carrier of packets (extra `flare`).

No module of this package depends on a method; start reading at `federation_folder`.
"""
