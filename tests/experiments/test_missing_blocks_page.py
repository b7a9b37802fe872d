"""Compared numbers cover the same methods, configurations and seeds; scores are invented, results computed by hand."""

from __future__ import annotations

import pytest

from anyparty.experiments.experiment import render
from anyparty.experiments.missing_blocks_results import (
    best_scores,
    measured_scores,
    published_scores,
    ratios,
    training_pairs,
)
from anyparty.experiments.missing_blocks_suite import MissingBlocksSuite

METHODS = {"weak": {}, "strong": {}, "own-1": {"own": True}, "own-2": {"own": True}, "extra": {"beyond": True}}
PRINTED = {
    "weak": {"MCAR 2": [[50.0, 1.0], [40.0, 1.0]], "MCAR 5": [[50.0, 1.0], [40.0, 1.0]]},
    "strong": {"MCAR 2": [[70.0, 1.0], [65.0, 1.0]], "MCAR 5": [[70.0, 1.0], [65.0, 1.0]]},
    "own-1": {"MCAR 2": [[56.0, 1.0], [48.0, 1.0]], "MCAR 5": [[46.0, 1.0], [38.0, 1.0]]},
    "own-2": {"MCAR 2": [[80.0, 1.0], [75.0, 1.0]], "MCAR 5": [[80.0, 1.0], [75.0, 1.0]]},
}


def made(**changes) -> MissingBlocksSuite:
    """Create a suite with two training and two test mechanisms; the paper's ``strong`` and ``own-2`` are far ahead."""
    entry = {"metric": "accuracy", "unit": "accuracy, %", "batch_size": 32, "embedding": 4, "encoder": {"hidden": [4]}}
    methods = {
        key: {"title": key.title(), "name": "laser", "epochs": 1, "optimizer": {"lr": 0.01}, **of}
        for key, of in METHODS.items()
    }
    return MissingBlocksSuite.model_validate(
        {
            "name": "made", "title": "Made up", "paper": "None", "layout": "training", "parties": [3],
            "train_missing": ["MCAR 2", "MCAR 5"], "test_missing": ["MCAR 0", "MAR 1"],
            "datasets": {"breast-cancer": {**entry, "methods": methods}}, "published": {"breast-cancer": PRINTED},
            **changes,
        }
    )  # fmt: skip


def scored(method: str, missing: str, *of_seed: tuple[float, float], first: int = 0, parties: int = 3) -> dict:
    """Return records of a method by key, one for each seed from ``first`` on: its two scores, in per cent."""
    return {
        f"{method}-{parties}-{missing}-{seed}": {
            "run": {"dataset": "breast-cancer", "method": method, "parties": parties, "missing": missing, "seed": seed},
            "scores": {
                test: {"clients": {}, "overall": {"accuracy": score / 100}, "missing": 0.2}
                for test, score in zip(("MCAR 0", "MAR 1"), scores, strict=True)
            },
            "missing": 0.2, "seconds": 1.0, "cpu_seconds": 1.0, "epochs": 1,
        }
        for seed, scores in enumerate(of_seed, first)
    }  # fmt: skip


def page(records: dict, **changes) -> str:
    """Return the page of some records."""
    return render(made(**changes), records, {}).markdown


def row(text: str, title: str) -> str:
    """Return the first line of a table that begins with a title."""
    return next(line for line in text.splitlines() if line.startswith(f"| {title} |"))


class TestBothSidesAreAlike:
    def test_gaps_use_only_methods_and_configurations_that_have_run(self):
        """Only Weak and Own-1 have run, under MCAR 5 only Own-1; the paper's other numbers must not count."""
        text = page(
            scored("weak", "MCAR 2", (60, 50)) | scored("own-1", "MCAR 2", (70, 48)) | scored("own-1", "MCAR 5", (1, 1))
        )
        assert "| ours | 2 | 4.0 | 1 of 2 |" in text  # 10 and -2
        assert "| *paper* | 2 | 7.0 | 2 of 2 |" in text  # 6 and 8
        assert "(others: Weak; configurations: 2, seeds of each: 1 (0)):" in text
        table = text[text.index("| | MCAR 0 | MAR 1 |") :].splitlines()
        assert table[2:4] == ["| ours | 10.0 | -2.0 |", "| *paper* | 6.0 | 8.0 |"]

    def test_gaps_exclude_a_configuration_with_an_unfinished_method(self):
        """Under MCAR 5 only Strong has run; compared with Weak under MCAR 2, Own-1 would be far ahead."""
        records = scored("weak", "MCAR 5", (60, 50)) | scored("strong", "MCAR 5", (80, 60))
        records |= scored("own-1", "MCAR 5", (70, 58)) | scored("own-1", "MCAR 2", (90, 90))
        text = page(records | scored("weak", "MCAR 2", (10, 10)))
        assert "| ours | 2 | -6.0 | 0 of 2 |" in text  # -10 and -2
        assert "| *paper* | 2 | -25.5 | 0 of 2 |" in text  # -24 and -27

    def test_means_use_only_own_methods_that_have_run(self):
        text = page(scored("own-1", "MCAR 2", (70, 48)))
        assert "(Own-1; configurations: 2, seeds of each: 1 (0)):\n\n| | breast-cancer |" in text
        assert row(text, "ours") == "| ours | 59.0 |"
        assert text.count("| *paper* | 52.0 |") == 1  # 56 and 48, not Own-2's 80 and 75

    def test_gaps_exclude_methods_that_are_not_in_the_paper(self):
        records = (
            scored("weak", "MCAR 2", (60, 50))
            | scored("strong", "MCAR 2", (90, 90))
            | scored("own-1", "MCAR 2", (70, 48))
        )
        some = {"breast-cancer": {method: PRINTED[method] for method in ("weak", "own-1")}}
        text = page(records, published=some)
        assert "| ours | 2 | 4.0 | 1 of 2 |" in text
        assert "| *paper* | 2 | 7.0 | 2 of 2 |" in text

    def test_gaps_are_shown_without_published_numbers(self):
        text = page(scored("weak", "MCAR 2", (60, 50)) | scored("own-1", "MCAR 2", (70, 48)), published={})
        assert "| ours | 2 | 4.0 | 1 of 2 |" in text
        assert "*paper*" not in text


class TestSeedsAreAlike:
    UNEVEN = scored("weak", "MCAR 2", (60, 50), (90, 90)) | scored("own-1", "MCAR 2", (70, 48))

    def test_gaps_use_only_seeds_that_all_methods_have(self):
        """On seed 0 the gaps are 10 and -2; with Weak's easy seed 1 they would be -5 and -22."""
        text = page(self.UNEVEN)
        assert "| ours | 2 | 4.0 | 1 of 2 |" in text

    def test_gaps_exclude_a_configuration_without_a_common_seed(self):
        text = page(self.UNEVEN | scored("weak", "MCAR 5", (1, 1)) | scored("own-1", "MCAR 5", (2, 2), first=1))
        assert "| ours | 2 | 4.0 | 1 of 2 |" in text
        assert "| *paper* | 2 | 7.0 | 2 of 2 |" in text

    def test_the_best_score_on_common_seeds_is_bold(self):
        """Weak's mean over both seeds is 75, above Own-1's 70 on one seed; on that seed, Weak is behind."""
        text = page(self.UNEVEN)
        assert row(text, "Weak").startswith("| Weak | 75.0 ± 21.2")
        assert row(text, "Own-1").startswith("| Own-1 | **70.0** | 48.0 |")
        assert "compared over the seeds that all its rows have" in text

    def test_no_score_is_bold_without_a_common_seed(self):
        text = page(scored("weak", "MCAR 2", (60, 50)) | scored("own-1", "MCAR 2", (70, 48), first=1))
        assert "**" not in row(text, "Weak") + row(text, "Own-1")
        assert row(text, "Own-1").endswith("| 1 (1) | 1 |")

    def test_a_column_shows_the_number_of_seeds_if_it_differs(self):
        text = page(self.UNEVEN)
        assert "| missing at test | MCAR 0 | MAR 1 | seeds | s / training |\n|---|---|---|---|---|" in text
        assert row(text, "Weak").endswith("| 2 (0-1) | 1 |")
        assert row(text, "Own-1").endswith("| 1 (0) | 1 |")
        assert "| *paper* | 50.0 ± 1.0 | 40.0 ± 1.0 | | |" in text

    def test_equal_numbers_of_seeds_need_no_column(self):
        text = page(scored("weak", "MCAR 2", (60, 50), (70, 70)) | scored("own-1", "MCAR 2", (70, 48), (71, 49)))
        assert "| missing at test | MCAR 0 | MAR 1 | s / training |" in text
        assert "| *paper* | 50.0 ± 1.0 | 40.0 ± 1.0 | |" in text

    def test_tables_by_number_of_parties_show_the_number_of_seeds(self):
        """Cells of a row may differ too: two seeds with two parties, one seed with three."""
        records = (
            scored("weak", "MCAR 2", (60, 50), (90, 90), parties=2)
            | scored("weak", "MCAR 2", (60, 50))
            | scored("extra", "MCAR 2", (65, 45), parties=2)
        )
        text = page(records, parties=[2, 3])
        assert "| method | K = 2 | K = 3 | seeds |\n|---|---|---|---|" in text
        assert row(text, "Weak").endswith("| **60.0** | 1 to 2 (0-1) |")
        assert row(text, "Extra") == "| Extra | **65.0** | | 1 (0) |"

    def test_pages_by_number_of_parties_have_the_reached_missing_rates(self):
        records = scored("weak", "MCAR 2", (60, 50), parties=2) | scored("weak", "MCAR 2", (60, 50))
        records["weak-2-MCAR 2-0"] |= {"missing": 0.1}  # with two parties, more rows would lose all blocks
        text = page(records, parties=[2, 3])
        rates = "Share of blocks that is missing: training K = 2: 10.0%, K = 3: 20.0%; test K = 2: 20.0%, K = 3: 20.0%."
        assert f"\n\n{rates}\n\n" in text

    def test_the_legend_of_a_figure_shows_the_seeds(self, tmp_path):
        render(made(), self.UNEVEN, {}).plot(tmp_path / "plot")
        drawn = (tmp_path / "plot.svg").read_text()
        assert "Weak; seeds: 2 (0-1)" in drawn
        assert "Own-1; seeds: 1 (0)" in drawn


class TestBeyondThePaper:
    RECORDS = scored("extra", "MCAR 2", (60, 50), (90, 90)) | scored("own-1", "MCAR 2", (70, 48))

    def test_gaps_to_printed_scores_mention_the_different_random_draws(self):
        text = page(self.RECORDS)
        assert "as printed. The paper trained and tested on other random draws:" in text
        assert "| Extra, breast-cancer | 2 | 2 (0-1) | 72.5 | 77.5 | 0 of 2 |" in text

    def test_gaps_to_own_runs_use_the_same_seeds(self):
        text = page(self.RECORDS)
        assert "as run here (Own-1), over the seeds that all of them have:" in text
        assert "| Extra, breast-cancer | 2 | 1 (0) | 55.0 | 59.0 | 1 of 2 |" in text

    def test_no_table_of_gaps_is_shown_without_an_own_method(self):
        text = page(scored("extra", "MCAR 2", (60, 50)))
        assert "as printed. The paper" in text
        assert "as run here" not in text


class TestRatios:
    PAPER = {"breast-cancer": {"weak": [100.0, 90.0], "strong": [120.0, 80.0], "own-1": [110.0, 85.0]}}

    def test_a_ratio_uses_the_seeds_that_both_trainings_have(self):
        records = scored("weak", "MCAR 2", (60, 50), (90, 90)) | scored("weak", "MCAR 5", (30, 40))
        found = ratios(training_pairs(made(), measured_scores(made(), made().read_cells(records))))
        assert dict(found.select("test", "ratio").iter_rows()) == pytest.approx({"MCAR 0": 50.0, "MAR 1": 80.0})

    def test_ratios_are_compared_on_common_seeds(self):
        """Weak has 100 over its two seeds, but 50 on seed 0, which Own-1 has too, with 60."""
        records = (
            scored("weak", "MCAR 2", (60, 50), (60, 50))
            | scored("weak", "MCAR 5", (30, 50), (90, 50))
            | scored("own-1", "MCAR 2", (50, 50))
            | scored("own-1", "MCAR 5", (30, 30))
        )
        text = page(records, layout="ratios", published_ratios=self.PAPER)
        assert row(text, "Weak") == "| Weak | 100.0 | **100.0** | 2 (0-1) |"
        assert row(text, "Own-1") == "| Own-1 | **60.0** | 60.0 | 1 (0) |"
        assert "Ratios are of `accuracy` of all test rows together; in the CSV the columns `metric` and" in text
        csv = render(made(layout="ratios", published_ratios=self.PAPER), records, {}).csv.splitlines()
        assert csv[0].startswith("dataset,method,test_missing,metric,ratio,")
        assert csv[1].startswith("breast-cancer,weak,MCAR 0,accuracy,100.000,")

    def test_leads_are_counted_only_among_methods_that_have_run(self):
        """In the paper, Own-1 leads Weak once in two columns, and leads nowhere if Strong is included."""
        both = {
            key: record
            for missing, scores in (("MCAR 2", (50, 50)), ("MCAR 5", (30, 30)))
            for method in ("weak", "own-1")
            for key, record in scored(method, missing, scores).items()
        }
        text = page(both, layout="ratios", published_ratios=self.PAPER)
        assert "in the paper 1 of 2 with the same methods, 0 of 2 in all." in text

    def test_a_column_with_only_own_methods_has_no_lead(self):
        records = scored("own-1", "MCAR 2", (50, 50)) | scored("own-1", "MCAR 5", (30, 30))
        text = page(records, layout="ratios", published_ratios=self.PAPER)
        assert "one of the paper's own methods has the highest ratio: 0 of 2 in the paper." in text


def test_gaps_of_the_paper_equal_those_computed_by_hand():
    """The gaps of all printed numbers: 80 - 70 and 75 - 65, twice."""
    assert best_scores(published_scores(made()))["gap"].to_list() == pytest.approx([10.0] * 4)
