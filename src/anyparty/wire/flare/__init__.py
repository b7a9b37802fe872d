"""The carrier between processes and machines, over NVIDIA FLARE (extra ``flare``).

federation      start here: kits, sites, jobs
kits, site      certificates and start-up files; what one party says at home
seat            what FLARE starts for a job: a party runs its part
channel         what a coroutine sees
post, peer      every message once and in order, or its receiver hears who is gone; note: what is written on a parcel
admin           the admin client, a process of its own
"""
