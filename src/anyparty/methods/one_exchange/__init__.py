"""Methods that exchange representations once, then train locally: APC-VFL, VFedTrans and their parts.

Nothing here exchanges messages in every batch.
"""
