"""A CNN, a loss, an optimizer and a scheduler of your own, and t-SNE of embeddings.

Run ``python examples/your_own_network.py``.
The images of 8 x 8 pixels are scikit-learn's digits; each party has half of each image.
"""

import torch
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE
from torch import nn

from anyparty import Federation

X, y = load_digits(return_X_y=True)
halves = {"top": X[:, :32].reshape(-1, 1, 4, 8), "bottom": X[:, 32:].reshape(-1, 1, 4, 8)}
federation = Federation.from_arrays(halves, y)


def cnn(inputs: int, width: int) -> nn.Module:
    """Return a network of half an image: [B, inputs] -> [B, width]."""
    images = nn.Unflatten(1, (1, 4, 8))
    return nn.Sequential(images, nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * inputs, width))


model = federation.train("laser", encoder=cnn, epochs=5, loss=nn.CrossEntropyLoss(label_smoothing=0.1),
                         optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.003),
                         scheduler=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, gamma=0.8))  # fmt: skip
embedded = model.embed()["top"]
points = TSNE().fit_transform(embedded.drop("id").to_numpy())
plt.scatter(*points.T, c=y[embedded["id"]], cmap="tab10", s=5)
plt.savefig("t-sne.png")
print(model.evaluate())
