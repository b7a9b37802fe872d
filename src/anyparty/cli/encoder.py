"""The command that says whether an encoder is worth training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from anyparty.cli.guard import screen, sentences
from anyparty.cli.options import AllowCode, own_code


@sentences
def inspect_encoder(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The federation's settings.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="GROUP.KEY=VALUE", help="Change a setting, e.g. encoder.hidden=[128]."),
    ] = None,
    party: Annotated[
        str | None, typer.Option("--party", help="Whose encoder.", show_default="the active party's")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How long it is trained.")] = 100,
    every: Annotated[int, typer.Option("--every", min=1, help="After how many epochs it is scored.")] = 10,
    embedding: Annotated[
        int | None, typer.Option("--embedding", min=1, help="Width of the embedding.", show_default="the method's")
    ] = None,
    classifier: Annotated[
        str, typer.Option("--classifier", help="logistic, or a class of scikit-learn's.")
    ] = "logistic",
    metric: Annotated[str, typer.Option("--metric", help="A scorer of scikit-learn's: accuracy, f1 ...")] = "accuracy",
    folds: Annotated[int, typer.Option("--folds", help="Of the cross-validation.")] = 10,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.0, help="How much worse than the columns embeddings may be.")
    ] = 0.01,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where the plot goes: .png or .svg.")] = Path(
        "encoder.png"
    ),
    allow_code: AllowCode = None,
) -> None:
    """Train one party's encoder at home, and score a classifier on its embeddings beside the columns themselves.

    For classification.  Nothing is sent; test rows are left out.  In Python:
    anyparty.run.encoder.inspect_encoder(config.load("CONFIG.toml"), epochs=100, every=10).
    """
    from anyparty import config as settings
    from anyparty.report import encoder_figure
    from anyparty.run.encoder import inspect_encoder as inspected

    encoder_figure.check_kind(out)
    resolved, console = settings.load(config, changes or [], allow_code=allow_code or []), screen()
    own_code(resolved, config.parent, lambda said: console.print(said, soft_wrap=True))
    how: dict[str, Any] = {"epochs": epochs, "every": every, "classifier": classifier, "metric": metric, "folds": folds}
    how |= {} if embedding is None else {"embedding": embedding}
    said = f"{metric}, mean ± standard deviation over {folds} folds"
    table = Table("epoch", title=said, title_justify="left")
    for heading in ("loss", "embeddings", "columns", "lost"):
        table.add_column(heading, justify="right")
    found = []
    for epoch in inspected(resolved, party, **how):
        found.append(epoch)
        embedded, raw = epoch.scores.embedded, epoch.scores.raw
        table.add_row(str(epoch.epoch), f"{epoch.loss:.4f}", f"{embedded.mean():.3f} ± {embedded.std(ddof=1):.3f}",
                      f"{raw.mean():.3f} ± {raw.std(ddof=1):.3f}", f"{epoch.scores.lost:+z.3f}")  # fmt: skip
    console.print(table)
    last = found[-1].scores
    verdict = "as good as the columns" if last.alike(threshold) else "worse than the columns"
    console.print(
        f"After epoch {found[-1].epoch} embeddings are {verdict}: lost {last.lost:+z.3f}, allowed {threshold:g}."
    )
    encoder_figure.write(found, metric, out)
    console.print(f"The plot is {out}", soft_wrap=True)
