"""PyTorch modules, losses and optimizers, independent of parties and messages."""
