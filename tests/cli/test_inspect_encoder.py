"""`anyparty inspect-encoder`: scores of a party's encoder, its plot, and its errors."""

import numpy as np
import polars as pl
import pytest
from matplotlib.image import imread

from anyparty import config
from anyparty.api.encoder_inspection import inspect_encoder
from anyparty.api.federation import Federation
from anyparty.config.schema import SplitSettings
from anyparty.errors import ConfigError
from anyparty.problem.splits import TEST
from tests.conftest import write_tables


@pytest.fixture
def settings(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "credit.toml"


def test_scores_are_printed_and_a_plot_is_written(settings, call, tmp_path):
    shown = call("inspect-encoder", settings, "--epochs", 4, "--every", 2, "--folds", 3, "--out", "plots/seen.png")
    assert shown.exit_code == 0, shown.output
    epochs = list(inspect_encoder(config.load(settings), epochs=4, every=2, folds=3))
    assert [epoch.epoch for epoch in epochs] == [2, 4]
    for epoch in epochs:
        assert f"{epoch.loss:.4f}" in shown.stdout
        assert f"{epoch.scores.embedded.mean():.3f} ± {epoch.scores.embedded.std(ddof=1):.3f}" in shown.stdout
    assert "mean ± standard deviation over 3 folds" in " ".join(shown.stdout.split())
    assert "After epoch 4 embeddings are" in shown.stdout
    assert imread(tmp_path / "plots" / "seen.png").std() > 0.01
    assert call("inspect-encoder", settings, "--epochs", 1, "--folds", 3, "-o", "seen.svg").exit_code == 0
    assert "<svg" in (tmp_path / "seen.svg").read_text()


def test_the_inspected_encoder_follows_the_settings(settings):
    narrow = config.load(settings, ["encoder.hidden=[1]", "method.embedding=1"])
    wide = config.load(settings, ["encoder.hidden=[32]", "method.embedding=8"])
    losses = [list(inspect_encoder(each, epochs=30, every=30, folds=3))[-1].loss for each in (narrow, wide)]
    assert losses[1] < 0.7 * losses[0]


def test_class_weights_are_matched_by_name(settings):
    of = config.load(settings)
    names = sorted(pl.read_csv("bank.csv", infer_schema=False)["default"].drop_nulls().unique())
    how = {"epochs": 1, "folds": 3, "metric": "balanced_accuracy"}
    weighed = {"class_weight": dict.fromkeys(names, 2.0)}
    found = [next(inspect_encoder(of, settings=each, **how)).scores.raw for each in ({}, weighed)]
    assert np.allclose(*found, atol=0.1)
    with pytest.raises(ConfigError, match=f"the classes are '{names[0]}'"):
        next(inspect_encoder(of, settings={"class_weight": {"x": 1.0}}, **how))


@pytest.mark.filterwarnings("ignore:.* standard deviations from their mean")
def test_test_rows_are_left_out(settings):
    """Their cells do not change the scores, because test rows are drawn before anything is fitted."""
    of = config.load(settings)
    federation = Federation.from_config(of)
    position, use = federation.alignment.position["bank"], federation.split(of.train)
    rows = position[(position >= 0) & (use == TEST)]
    assert len(rows) >= 10
    bank = pl.read_csv("bank.csv")
    odd = bank.with_row_index().with_columns(
        pl.when(pl.col("index").is_in(rows.tolist())).then(9_999.0).otherwise(pl.col("income")).alias("income")
    )
    shop = pl.read_csv("shop.csv")
    found = [
        list(inspect_encoder(of, tables={"bank": table, "shop": shop}, epochs=2, folds=3))[-1].scores
        for table in (bank, odd.drop("index"))
    ]
    assert np.array_equal(found[0].raw, found[1].raw)
    assert np.array_equal(found[0].embedded, found[1].embedded)


def test_rows_without_a_cell_are_left_out(settings):
    random = config.load(settings).model_copy(update={"split": SplitSettings(kind="random")})
    of, bank, shop = random, pl.read_csv("bank.csv"), pl.read_csv("shop.csv")
    blank = pl.DataFrame({"customer": [f"x{n}" for n in range(20)], "default": bank["default"][:20]})
    found = [
        list(inspect_encoder(of, tables={"bank": table, "shop": shop}, epochs=2, folds=3))[-1].scores
        for table in (bank, pl.concat([bank, blank], how="diagonal"))
    ]
    assert np.array_equal(found[0].raw, found[1].raw)
    assert np.array_equal(found[0].embedded, found[1].embedded)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--party", "shop"], "party 'shop' has no labels, and the encoder check measures how well"),
        (["--party", "shpo"], "there is no party 'shpo'; did you mean 'shop'?"),
        (["--folds", "60"], "rows, so it would be absent from some of 60 folds"),
        (["--folds", "500"], "rows are fewer than 500 folds; lower --folds"),
        (["--folds", "1"], "cross-validation: folds must be at least 2, got 1"),
        (["--metric", "accurcy"], "cross-validation: no metric 'accurcy'; did you mean 'accuracy'?"),
        (["--metric", "zzz"], "no metric 'zzz'; known are: accuracy, adjusted_mutual_info_score, "),
        (["--threshold", "-1"], "--threshold"),
        (["--classifier", "Forest"], "no classifier 'Forest'"),
        (["--out", "seen.jpg"], "--out seen.jpg: name a file that ends in .png or .svg"),
        (["--set", "federation.label=income"], "the label 'income' is a number, and the encoder check scores classes"),
    ],
)
def test_invalid_arguments_are_refused(settings, call, words, said):
    shown = call("inspect-encoder", settings, "--epochs", 1, *words)
    assert shown.exit_code == 2, shown.output
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_sizes_below_one_are_refused(settings):
    with pytest.raises(ConfigError, match="epochs, every, batch_size and embedding must be at least 1, got 0, 1"):
        list(inspect_encoder(config.load(settings), epochs=0))
