"""NVIDIA FLARE: provisioning, certificates, site processes, jobs and the carrier of packets (extra `flare`).

Nothing here knows a method; start reading at `federation_folder`.
"""
