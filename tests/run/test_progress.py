"""The progress line: what it says stays as it is named."""

import io

from rich.console import Console

from anyparty.run.progress import Bar


def test_a_name_in_brackets_is_shown():
    told = io.StringIO()
    bar = Bar(Console(file=told, force_terminal=True, width=160))
    bar.on_stage_begin("local, Bank [red]", epochs=2, rows=10, first_epoch=0)
    bar.on_epoch_end({"loss": 0.5, "validation": {"f1 [b]": 0.25}})
    bar.on_stage_end("local, Bank [red]", "2 epochs [/red]")
    assert "local, Bank [red]: 2 epochs [/red]" in told.getvalue()
    assert "f1 [b] 0.2500" in told.getvalue()
