"""From CSV files to predictions: the overlap, a model, its scores, and answers without one party.

    python examples/your_csvs.py [FOLDER]

The program writes the demo's tables of four parties to FOLDER.  For your own tables, change ``tables`` and ``new``,
and the names of the columns in ``id`` and ``label``.
"""

import sys
from pathlib import Path

from rich import print  # noqa: A004 - it prints tables

from anyparty import MLP, Federation, Model, Optimizer
from anyparty.cli import demo_data


def main(folder: Path) -> None:
    """Train, evaluate, save, load and predict."""
    demo_data.write(folder)
    tables = {name: folder / f"{name}.csv" for name in demo_data.PARTIES}
    new = {name: folder / "test" / f"{name}.csv" for name in demo_data.PARTIES}

    federation = Federation.from_tables(tables, id="image", label="digit")
    print(federation.overlap.render())

    model = federation.train(
        "laser", encoder=MLP(hidden=(32,)), optimizer=Optimizer(lr=0.01), epochs=10, test=0.2, seed=0
    )
    print(model.evaluate().render())  # on the fifth of the rows that training held out
    model.save(folder / "model", replace=True)  # overwrite an earlier model

    model = Model.load(folder / "model")
    del new["top_left"]  # predict without this party; or name the others: parties=["top_right", "bottom_left"]
    answers = model.predict(new)
    print(answers.frame().head())  # class, probability, parties; or the reason why there is no answer


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "anyparty-demo"))
