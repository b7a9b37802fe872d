"""Methods that exchange representations once, then train locally: APC-VFL, VFedTrans and the modules that they use.

No method in this package sends messages in every batch.
"""
