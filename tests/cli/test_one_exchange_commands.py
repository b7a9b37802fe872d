"""Methods of one exchange on the command line: messages are counted, and the active party then predicts by itself."""

import json
from pathlib import Path

import polars as pl
import pytest

from anyparty.api.runs import model_for_run
from anyparty.core import costs
from anyparty.transport.ledger import Ledger

NARROW = ("train.epochs=2", "method.embedding=4", "method.student_hidden=[4]", "train.test=0.0", "train.validation=0.0")


@pytest.fixture
def three(work):
    """Add a third party to the two of ``work``; it shares 40 rows with the bank, and the shop shares 70."""
    bank = pl.read_csv("bank.csv")
    bank.select("customer", calls=pl.col("age") * 2)[60:].write_csv("phone.csv")
    settings = (work / "credit.toml").read_text()
    (work / "credit.toml").write_text(
        settings.replace("[encoder]", '[parties.phone]\ntable = "phone.csv"\n\n[encoder]')
    )
    return work


def trained(call, name, *changes):
    words = [word for change in (f"method.name={name}", *NARROW, *changes) for word in ("--set", change)]
    shown = call("train", "credit.toml", "--run", "once", *words)
    assert shown.exit_code == 0, shown.output
    return json.loads(Path("once/record.json").read_text())


def alone(three, call):
    """Predict with the bank alone, from files, without messages."""
    (three / "shop.csv").unlink()
    (three / "phone.csv").unlink()
    shown = call("predict", "once", "--table", "bank=bank.csv", "--out", "answers.csv")
    assert shown.exit_code == 0, shown.output
    answers = pl.read_csv("answers.csv")
    assert answers["prediction"].null_count() == 0
    assert answers.height == 100
    assert set(answers["parties"]) == {"bank"}
    ledger = Ledger()
    model_for_run("once").predict({"bank": "bank.csv"}, ledger=ledger)
    assert ledger.flows == {}


def test_apc_sends_one_message_from_each_passive_party(three, call):
    record = trained(call, "apc", "method.passive_embedding=5", "method.active_embedding=3", "method.joint_hidden=[4]")
    own = [row for row in record["ledger"] if row["tag"] == "representation"]
    sent = [(row["sender"], row["receiver"], row["messages"]) for row in own]
    assert sent == [("phone", "bank", 1), ("shop", "bank", 1)]
    assert (
        {row["sender"]: row["bytes_sent"] for row in own}
        == {each["party"]: each["bytes_sent"] for each in record["costs"]["published"]}
        == {"shop": costs.apc(70, 5).bytes_sent, "phone": costs.apc(40, 5).bytes_sent}
    )
    said = {row["tag"] for row in record["ledger"]} - {"representation"}
    assert said == {"setup", "hello", "start", "plan"}
    alone(three, call)


def test_apc_predicts_from_exchanged_rows_and_reports_it(three, call):
    trained(call, "apc", "method.classify_on=either", "method.passive_embedding=5", "method.joint_hidden=[4]")
    (three / "shop.csv").unlink()
    (three / "phone.csv").unlink()
    shown = call("predict", "once", "--table", "bank=bank.csv", "--out", "answers.csv")
    assert "Not asked: shop, phone; their messages about these rows in training were kept." in shown.output
    counts = dict(pl.read_csv("answers.csv")["parties"].value_counts().rows())
    assert counts == {"bank": 30, "bank shop": 30, "bank shop phone": 40}


@pytest.mark.parametrize(
    ("name", "title", "more"),
    [("apc", "APC-VFL", ()), ("apc", "APC-VFL", ("method.classify_on=either",)), ("vfedtrans", "VFedTrans", ())],
    ids=["apc", "either", "vfedtrans"],
)
def test_without_the_active_table_every_row_gets_a_reason(three, call, name, title, more):
    trained(call, name, *more)
    shown = call("predict", "once", "--table", "shop=shop.csv", "--out", "answers.csv")
    assert shown.exit_code == 0, shown.output
    answers = pl.read_csv("answers.csv")
    assert answers["prediction"].null_count() == answers.height == pl.read_csv("shop.csv").height
    assert set(answers["reason"]) == {f"{title} predicts from the block of 'bank', which was not asked"}


def test_vfedtrans_decomposes_with_each_passive_party(three, call):
    record = trained(call, "vfedtrans")
    own = [(row["sender"], row["receiver"], row["tag"]) for row in record["ledger"]
           if row["tag"] in {"width", "key", "masked", "factor"} and row["messages"] == 1]  # fmt: skip
    assert own == [("bank", "phone", "width"), ("bank", "shop", "width"), ("phone", "bank", "key"),
                   ("phone", "bank", "masked"), ("shop", "bank", "key"), ("shop", "bank", "masked")]  # fmt: skip
    assert {each["party"]: each["bytes_sent"] for each in record["costs"]["published"]} == {
        "shop": costs.vfedtrans(70, 2, 3).bytes_sent, "phone": costs.vfedtrans(40, 2, 1).bytes_sent,
    }  # fmt: skip
    alone(three, call)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "title"), [("apc", "APC-VFL"), ("vfedtrans", "VFedTrans")])
def test_training_without_shared_rows_is_refused(three, call, name, title):
    bank, shop = (pl.read_csv(f"{party}.csv") for party in ("bank", "shop"))
    theirs = shop.filter(~pl.col("customer").is_in(bank["customer"].to_list()))
    theirs.write_csv("shop.csv")
    theirs.select("customer", calls="visits").write_csv("phone.csv")
    shown = call("train", "credit.toml", "-q", "--set", f"method.name={name}")
    assert shown.exit_code == 2
    assert f"{title}: no row is aligned: 'bank' shares no row with a passive party" in shown.stderr
    assert "Traceback" not in shown.stderr
