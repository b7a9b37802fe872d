"""Check that ResNet encoders learn on CIFAR-10's quadrants, 12,000 images: python -m benchmarks.resnet_check.

The published experiment trains 50,000 images for 100 epochs on a GPU. This check trains the suite's networks (ResNet-18
of widths 32 to 256 at each of four parties) for the few epochs that two cores allow. Needs ANYPARTY_DATA.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from anyparty.core.seeds import Seeds
from anyparty.data import datasets
from anyparty.experiments.party_tables import blocks_of, draw, federation, tables
from anyparty.networks.encoders import ResNet
from anyparty.networks.optimizer import Optimizer
from benchmarks.page import Page, quick_asked

EPOCHS, MISSING, TESTS = 4, "0.1", ("0.0", "0.1", "0.5")


def main(*, quick: bool) -> None:
    page = Page("resnet_check", "The ResNet path: CIFAR-10's quadrants at four parties", quick)
    torch.set_num_threads(1)
    seeds, data = Seeds(0), datasets.load("cifar10", progress=False).split(Seeds(0))
    assert data.X_test is not None
    assert data.y_test is not None
    few = np.arange(512 if quick else len(data.y_train))
    train, test = (blocks_of(X, "quadrants", 4) for X in (data.X_train[few], data.X_test))
    made = federation(tables(train, data.y_train[few], draw(MISSING, seeds, "train", train).observed), scale=False)
    began = time.perf_counter()
    model = made.train(
        "laser", parameters={"embedding": 256}, epochs=1 if quick else EPOCHS, batch_size=128,
        encoder=ResNet(shape=(3, 16, 16), widths=(32, 64, 128, 256)),
        optimizer=Optimizer(name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="cosine"),
        validation=0.0, test=0.0, patience=None, keep="last",
    )  # fmt: skip
    seconds = time.perf_counter() - began
    rows = [[str(each["epoch"]), f"{each['loss']:.3f}", f"{each['seconds']:.0f}"] for each in model.history]
    page.say(
        f"{len(few):,} training images, each party a quadrant of 3 x 16 x 16, blocks missing with probability "
        f"{MISSING}; ResNet-18 of widths 32 to 256 at every party, embedding 256, batch 128, one thread; "
        f"{seconds:.0f} s in all."
    )
    page.table("Training", ("epoch", "loss", "seconds"), rows)
    scores = []
    for test_missing in TESTS:
        seen = draw(test_missing, seeds, "test", test)
        found = model.evaluate(tables(test, data.y_test, seen.observed)).clients
        scores.append([test_missing, f"{100 * found['client_accuracy']:.1f}"])
    page.table(f"Accuracy on {len(data.y_test):,} test images, %", ("missing at test", "accuracy"), scores)
    page.say("A class drawn at random would be right for 10 % of them.")
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
