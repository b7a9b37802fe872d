"""Methods that exchange representations once, then train locally: APC-VFL, VFedTrans, and modules that both use.

No method in this package sends messages in every batch.
"""
