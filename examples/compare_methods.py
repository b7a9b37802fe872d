"""Compare four methods over three seeds and two missing rates, with a plot: ``python examples/compare_methods.py``."""

from pathlib import Path

import rich

import anyparty
from anyparty.cli import demo_data

demo_data.write(Path("anyparty-demo"))
methods = ["laser", "plug", "ensemble", "standard"]
comparison = anyparty.compare("anyparty-demo/federation.toml", methods, seeds=3, missing=[0, 0.3], test=0.3, epochs=10)
rich.print(comparison, comparison.paired("standard"))
comparison.plot().savefig("comparison.png")
