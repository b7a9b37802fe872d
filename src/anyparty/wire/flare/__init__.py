"""Transport between processes and machines over NVIDIA FLARE (extra ``flare``).

federation      the entry point: kits, sites, jobs
kits, site      certificates and start-up files; the settings of one site
seat            what FLARE starts for a job: a party runs its part
endpoint        a party's channel: each message arrives once and in order, or its receiver gets ``PartyLost``
session, buffers, envelope    the endpoint's state for one other party, its messages on their way, packet headers
admin           the administrator's client, a separate process
"""
