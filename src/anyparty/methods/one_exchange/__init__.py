"""Methods that exchange representations once, then train locally: APC-VFL, VFedTrans and their parts.

No method here sends messages in every batch.
"""
