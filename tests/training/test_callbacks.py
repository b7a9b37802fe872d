"""The progress line shows names literally, even if they contain Rich's markup."""

import io

import numpy as np
from rich.console import Console

from anyparty.alignment.overlap import Overlap
from anyparty.training.callbacks import Bar


def test_a_name_in_brackets_is_shown():
    told = io.StringIO()
    bar = Bar(Console(file=told, force_terminal=True, width=160))
    bar.on_stage_begin("local, Bank [red]", epochs=2, rows=10, first_epoch=0)
    bar.on_epoch_end({"loss": 0.5, "validation": {"f1 [b]": 0.25}})
    bar.on_stage_end("local, Bank [red]", "2 epochs [/red]")
    assert "local, Bank [red]: 1/2 epochs; 2 epochs [/red]." in told.getvalue()
    bar.on_party_lost("Shop [red]", "it left: [b]")
    bar.on_party_joined("Shop [red]")
    assert "Shop [red] is gone (it left: [b]); the others go on without it" in told.getvalue()
    assert "Shop [red] takes part again" in told.getvalue()
    assert "f1 [b] 0.2500" in told.getvalue()


def test_the_alignment_has_a_line_of_its_own():
    shown = io.StringIO()
    bar = Bar(Console(file=shown, force_terminal=True, width=160))
    bar.on_align_progress(250, 1000)
    bar.on_align_progress(1000, 1000)
    bar.on_aligned(Overlap.count(np.ones((3, 2), dtype=np.bool_), ["a", "b"]), "")
    bar.on_stage_begin("train", epochs=2, rows=10, first_epoch=0)
    bar.close()
    assert "private alignment" in shown.getvalue()
    assert "100/100" in shown.getvalue()
    assert "%" in shown.getvalue()
    assert "0/2" in shown.getvalue()


def test_no_width_cuts_the_scores():
    for width in (40, 80):
        shown = io.StringIO()
        bar = Bar(Console(file=shown, force_terminal=True, width=width))
        bar.on_stage_begin("train", epochs=100, rows=10, first_epoch=98)
        for _ in range(2):
            bar.on_epoch_end({"loss": 0.5, "validation": {"accuracy": 0.875, "log_loss": 0.25}})
        bar.on_stage_end("train", "all epochs done")
        assert "…" not in shown.getvalue()
        assert "100/100" in shown.getvalue()
        *_, last = filter(None, shown.getvalue().splitlines())
        scores = "loss 0.5000, validation accuracy 0.8750, log_loss 0.2500"
        assert last.endswith(f"train: 100/100 epochs; all epochs done. Last epoch: {scores}.")
