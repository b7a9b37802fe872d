"""The progress line shows names literally, even if they contain Rich's markup."""

import io

from rich.console import Console

from anyparty.training.progress import Bar


def test_a_name_in_brackets_is_shown():
    told = io.StringIO()
    bar = Bar(Console(file=told, force_terminal=True, width=160))
    bar.on_stage_begin("local, Bank [red]", epochs=2, rows=10, first_epoch=0)
    bar.on_epoch_end({"loss": 0.5, "validation": {"f1 [b]": 0.25}})
    bar.on_stage_end("local, Bank [red]", "2 epochs [/red]")
    assert "local, Bank [red]: 2 epochs [/red]" in told.getvalue()
    bar.on_party_lost("Shop [red]", "it left: [b]")
    bar.on_party_joined("Shop [red]")
    assert "Shop [red] is gone (it left: [b]); the others go on without it" in told.getvalue()
    assert "Shop [red] takes part again" in told.getvalue()
    assert "f1 [b] 0.2500" in told.getvalue()
