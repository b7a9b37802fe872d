"""PyTorch modules, losses and optimizers.

Nothing here knows a party or a message.
"""
