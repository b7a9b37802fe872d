"""From CSV files to predictions: who has which rows, a model, its scores, an answer from whoever is there.

    python examples/your_csvs.py [FOLDER]

FOLDER gets the demo's tables, three parties' with gaps.  For your own, put your files' names into ``tables`` and
``new``, and the names of your columns into ``id`` and ``label``.
"""

import sys
from pathlib import Path

from rich import print  # noqa: A004 - it shows tables

from anyparty import MLP, Federation, Model, Optimizer
from anyparty.cli import demo_data


def main(folder: Path) -> None:
    """Train, score, save, load and predict."""
    demo_data.write(folder)
    tables = {name: folder / f"{name}.csv" for name in ("mean", "error", "worst")}
    new = {name: folder / "test" / f"{name}.csv" for name in ("mean", "error", "worst")}

    federation = Federation.from_tables(tables, id="id", label="diagnosis")
    print(federation.overlap.render())

    model = federation.train(
        "laser", encoder=MLP(hidden=(32,)), optimizer=Optimizer(lr=0.01), epochs=30, test=0.2, seed=0
    )
    print(model.evaluate().render())  # on the fifth of the rows that training did not see
    model.save(folder / "model", replace=True)  # an earlier one may go

    model = Model.load(folder / "model")
    del new["mean"]  # a party that is absent: leave its table out, or name the others, parties=["error", "worst"]
    answers = model.predict(new)
    print(answers.frame().head())  # a class, its probability, who took part, or why there is no answer


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "anyparty-demo"))
