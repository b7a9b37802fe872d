"""Draw the demo's plot for the README in docs/images, in light and dark: ``python -m benchmarks.demo_picture``.

The five seeds are those of ``anyparty demo``.  ``docs/images/demo.csv`` has the numbers.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from anyparty.cli import demo

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NAMES = {"accuracy.svg": "demo-light.svg", "accuracy-dark.svg": "demo-dark.svg", "accuracy.csv": "demo.csv"}


def main() -> None:
    """Run the comparison, show its table, and write the files."""
    console = Console()
    comparison = demo.compare_methods(None, 5, 2, console)
    console.print(demo.render_table(comparison), " ".join(demo.verdicts(comparison)))
    files = demo.result_files(comparison)
    for source, name in NAMES.items():
        (IMAGES / name).write_bytes(files[source])


if __name__ == "__main__":
    main()
