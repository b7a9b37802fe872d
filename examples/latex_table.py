"""The table of a paper: four methods, three missing rates, three seeds, best in bold within the paired interval.

Run ``python examples/latex_table.py [FOLDER]``. A second run reads the finished runs from the folder.
"""

import sys
from pathlib import Path

from sklearn.datasets import load_digits

import anyparty

folder = Path((*sys.argv, "latex-table")[1])
X, y = load_digits(return_X_y=True)
quarters = {f"party {k + 1}": X[:, 16 * k : 16 * (k + 1)] for k in range(4)}
federation = anyparty.Federation.from_arrays(quarters, y)
comparison = anyparty.compare(federation, ["laser", "sum", "plug", "local"], seeds=3, missing=[0, 0.3, 0.5], epochs=10,
                              folder=folder)  # fmt: skip
(folder / "table.tex").write_text(comparison.to_latex())
comparison.to_csv(folder / "scores-by-parties.csv")
comparison.plot().savefig(folder / "plot.pdf")
print(comparison.to_latex())
