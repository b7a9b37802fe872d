"""Cases 20, 23, 25 and 31: ids of different types, rounded ids, ids written otherwise in part, and row numbers."""

import datetime as dt
import itertools
import re
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

from anyparty.alignment.alignment import align
from anyparty.alignment.overlap import Overlap, otherwise
from anyparty.api.federation import Federation
from anyparty.errors import AlignmentError, AnypartyWarning, TableError
from anyparty.tables.table import read_table
from tests.cases.conftest import clean

ROWS = 24
LARGE = 2**53


def tables_of(one, other, second=None):
    """Return the tables of two parties, which have 16 of 24 ids in common."""
    own = {} if second is None else {"second": second}
    first = pl.DataFrame({"id": one} | own | {"u": range(ROWS)})[:20]
    return first, pl.DataFrame({"id": other} | own | {"v": range(ROWS)})[4:]


DAYS = pl.Series([dt.date(2024, 1, 1) + dt.timedelta(days=row) for row in range(ROWS)])
TIMES = DAYS.cast(pl.Datetime("us")).dt.offset_by("8h30m")
ZONED = TIMES.dt.replace_time_zone("UTC")
NUMBERS = pl.Series(range(100, 100 + ROWS))


class TestCase20IdsOfTwoTypes:
    TYPES = {
        "days": [DAYS, *(DAYS.cast(pl.Datetime(unit)) for unit in ("ms", "us", "ns")), DAYS.cast(pl.String),
                 DAYS.cast(pl.String).cast(pl.Categorical), DAYS.cast(pl.Datetime).dt.strftime("%Y-%m-%dT%H:%M:%S")],
        "times": [TIMES, TIMES.cast(pl.Datetime("ns")), TIMES.dt.strftime("%Y-%m-%d %H:%M:%S"),
                  TIMES.dt.strftime("%Y-%m-%dT%H:%M:%S.000")],
        "times with a zone": [ZONED, ZONED.dt.convert_time_zone("Europe/Berlin"), ZONED.cast(pl.Datetime("ns", "UTC")),
                              TIMES.dt.strftime("%Y-%m-%dT%H:%M:%SZ"), TIMES.dt.strftime("%Y-%m-%d %H:%M:%S UTC")],
        "numbers": [*(NUMBERS.cast(kind) for kind in (pl.Int64, pl.Int8, pl.UInt64, pl.Float64, pl.Float32, pl.Int128,
                                                      pl.String)),
                    NUMBERS.cast(pl.String).cast(pl.Categorical), NUMBERS.cast(pl.String) + ".0",
                    NUMBERS.cast(pl.String).cast(pl.Enum(NUMBERS.cast(pl.String))),
                    pl.Series([Decimal(number).quantize(Decimal("1.00")) for number in NUMBERS])],
        "hours": [TIMES.dt.time(), TIMES.dt.strftime("%H:%M:%S")],
    }  # fmt: skip

    @pytest.mark.parametrize("composite", [False, True])
    @pytest.mark.parametrize("group", TYPES)
    def test_every_pair_of_types_in_both_directions(self, group, composite):
        if group == "hours" and not composite:
            pytest.skip("all hours are equal")
        second = pl.Series([f"k{row}" for row in range(ROWS)]) if composite else None
        for one, other in itertools.product(self.TYPES[group], repeat=2):
            named = ("id", "second") if composite else "id"
            parties = zip("ab", tables_of(one, other, second), strict=True)
            rows = align([read_table(frame, party=party, id=named) for party, frame in parties])
            assert rows.observed(["a", "b"]).all(axis=1).sum() == 16
            ids = rows.identities(np.arange(rows.n)).to_series(0)
            assert ids.null_count() == 0
            assert ids.dtype in {one.dtype, pl.String}, (one.dtype, other.dtype)

    @pytest.mark.parametrize(("composite", "swapped"), [(False, False), (True, False), (False, True)])
    def test_training_and_prediction(self, composite, swapped):
        tables = clean()
        days = pl.date_range(dt.date(2024, 1, 1), dt.date(2024, 8, 27), eager=True)
        pair = [days.cast(pl.Datetime), days.cast(pl.String)]
        pair = pair[::-1] if swapped else pair
        bank, shop = (frame.with_columns(day=day) for frame, day in zip(tables.values(), pair, strict=True))
        ids = ["customer", "day"] if composite else "day"
        if not composite:
            bank, shop = bank.drop("customer"), shop.drop("customer")
        model = Federation.from_tables({"bank": bank, "shop": shop[:200]}, id=ids, label="default").train(
            "laser", epochs=1
        )
        found = model.predict({"bank": bank.drop("default"), "shop": shop[100:]}).frame()
        assert found.height == 240
        assert found["day" if composite else "id"].equals(bank["day"], check_names=False)

    def test_ids_that_do_not_fit_the_type_become_text(self):
        for one, other in (
            (NUMBERS, "0" + NUMBERS.cast(pl.String)),
            (DAYS, DAYS.cast(pl.String) + "x"),
            (NUMBERS.cast(pl.Float64), pl.Series([LARGE + 1] * ROWS) + NUMBERS),
            (NUMBERS.cast(pl.Int8), NUMBERS + 1000),
        ):
            frames = dict(zip("ab", tables_of(one, other), strict=True))
            rows = align([read_table(frame, party=party, id="id") for party, frame in frames.items()], apart=True)
            ids = rows.identities(np.arange(rows.n)).to_series(0)
            assert set(ids.cast(pl.String)) == set(rows.ids)

    @pytest.mark.parametrize("kind", [pl.Datetime, pl.Date, pl.String])
    def test_listed_splits(self, kind):
        days = pl.date_range(dt.date(2024, 1, 1), dt.date(2024, 8, 27), eager=True)
        bank, shop = (frame.with_columns(day=days.cast(kind)) for frame in clean().values())
        listed = {"train": days[:200].to_list(), "test": days[200:].cast(pl.String).to_list()}
        made = Federation.from_tables({"bank": bank.drop("customer"), "shop": shop.drop("customer")}, id="day",
                                      label="default")  # fmt: skip
        assert made.train("laser", epochs=1, split=listed).test_rows == 40
        pairs = list(zip(bank["customer"], days, strict=True))
        both = Federation.from_tables({"bank": bank, "shop": shop}, id=["customer", "day"], label="default")
        assert both.train("laser", epochs=1, split={"train": pairs[:200], "test": pairs[200:]}).test_rows == 40


class TestCase23RoundedIds:
    LARGE_IDS = [LARGE + row for row in range(30)]

    @pytest.mark.parametrize(
        "ids",
        [
            pl.Series([f"{number}.0" for number in LARGE_IDS]),
            pl.Series([f"{number:.15e}" for number in LARGE_IDS]),
            pl.Series(["k1", *(f"{number}." for number in LARGE_IDS[1:])]),
            pd.Series([float(number) for number in LARGE_IDS]).astype(object),
            pd.Series(["k1", *(float(number) for number in LARGE_IDS[1:])]),
            pl.Series(LARGE_IDS, dtype=pl.Float64),
            pl.Series([2**24 + row for row in range(30)], dtype=pl.Float32),
        ],
    )
    def test_floats_are_no_ids_from_the_first_that_may_be_rounded(self, ids):
        frame = pd.DataFrame({"id": ids}) if isinstance(ids, pd.Series) else pl.DataFrame({"id": ids})
        with pytest.raises(TableError, match=r"id column 'id' (has|holds) numbers .* as text"):
            read_table(frame, party="bank", id="id")

    def test_exact_ids_are_kept(self):
        texts = [str(number) for number in self.LARGE_IDS]
        for ids in (pl.Series(self.LARGE_IDS), pl.Series(texts), pl.Series(self.LARGE_IDS, dtype=pl.UInt64)):
            assert read_table(pl.DataFrame({"id": ids}), party="bank", id="id").ids.to_list() == texts
        for ids in ([f"{LARGE - 1}.0", "2.5e+11", "7.0"], ["1e99", "12345678901234567", "x"]):
            assert len(read_table(pl.DataFrame({"id": ids}), party="bank", id="id")) == 3

    def test_listed_splits_and_arrays(self):
        u = np.random.default_rng(0).normal(size=(30, 2))
        y = np.arange(30) % 2
        made = Federation.from_arrays({"a": u}, y, ids=self.LARGE_IDS)
        assert made.train("laser", epochs=1, split={"train": self.LARGE_IDS[:20], "test": self.LARGE_IDS[20:]})
        with pytest.raises(TableError, match="too large for Float64"):
            made.train("laser", epochs=1, split={"train": [float(number) for number in self.LARGE_IDS]})
        with pytest.raises(TableError, match="too large for Float64"):
            Federation.from_arrays({"a": u}, y, ids=np.array(self.LARGE_IDS, dtype=float))


@pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
class TestCase25IdsWrittenOtherwiseInAThird:
    @staticmethod
    def notes(change, form="k{:04d}", third=True):
        """Return the notes on a bank with 240 ids and a shop with 192 of them, a third of which are changed."""
        ids = [form.format(row) for row in range(240)]
        shop = [change(each, row) if row % 3 == 0 or not third else each for row, each in enumerate(ids[:192])]
        frames = {"bank": pl.DataFrame({"id": ids}), "shop": pl.DataFrame({"id": shop})}
        read = [read_table(frame, party=party, id="id") for party, frame in frames.items()]
        rows = align(read)
        assert set(otherwise(rows, ["bank", "shop"])) <= set(Overlap.of(rows, ["bank", "shop"]).notes)
        return [*Overlap.of(rows, ["bank", "shop"]).notes, *(note for table in read for note in table.notes)]

    @pytest.mark.parametrize(
        ("change", "form", "cause"),
        [
            (lambda text, _: f"ID-{text}", "k{:04d}", "text before or after the id"),
            (lambda text, _: f"{text}-01", "k{:04d}", "text before or after the id"),
            (lambda text, _: text.replace("k", "\u043a"), "k{:04d}", "letters that look alike"),
            (lambda text, _: text.upper(), "k{:04d}", "upper and lower case"),
            # further inputs
            (lambda text, _: f"{text} (copy)", "{:05d}", "letters or signs around the numbers"),
            (lambda text, row: f"{text}/{row % 9}", "A{:04d}", "text before or after the id"),
            (lambda text, row: f"2024.{row % 12}.{text}", "customer{:04d}", "text before or after the id"),
            (lambda text, _: text.replace("A", "\u0391"), "A{:04d}", "letters that look alike"),
            (lambda text, _: text.replace("C", "\u0421"), "BC-{:04d}", "letters that look alike"),
            (lambda text, _: f"#{int(text)}", "{:05d}", "letters or signs around the numbers"),
            (lambda text, _: f"ID{text}", "k{:04d}", "text before or after the id"),
            (lambda text, _: f"{text}B", "k{:04d}", "text before or after the id"),
        ],
    )
    def test_a_remark_counts_the_rows(self, change, form, cause):
        notes = self.notes(change, form)
        for party in ("bank", "shop"):
            assert any(note.startswith(f"{party} would share 64 rows more but for {cause}") for note in notes)

    def test_letters_of_another_alphabet_are_named_at_their_party(self):
        notes = self.notes(lambda text, _: text.replace("k", "\u043a"))
        assert any("64 of 192 ids have letters that look like Latin ones, such as CYRILLIC SMALL LETTER KA" in note
                   for note in notes)  # fmt: skip

    @pytest.mark.parametrize("odd", [["Total"], ["total", "mean"], ["(sum)"]])
    def test_a_sum_row(self, odd):
        table = read_table(pl.DataFrame({"id": [*(f"k{row}" for row in range(100)), *odd]}), party="bank", id="id")
        assert f"{len(odd)} of {100 + len(odd)} ids are without a digit, all others have one" in table.notes[0]

    @pytest.mark.parametrize(("first", "notes"), [("a1", 0), ("k1", 1)], ids=["hexadecimal", "others"])
    def test_only_hexadecimal_ids_may_lack_digits(self, first, notes):
        ids = pl.DataFrame({"id": [*(f"{first}{row}" for row in range(100)), "dead"]})
        assert len(read_table(ids, party="bank", id="id").notes) == notes

    @pytest.mark.parametrize(
        ("change", "form"),
        [
            (lambda _, row: f"k{row + 5000:04d}", "k{:04d}"),  # other people
            (lambda _, row: f"B-{row + 200}", "A-{}"),  # numbers of another branch
            (lambda text, _: text[::-1], "{:032x}"),
        ],
    )
    def test_other_ids_get_none(self, change, form):
        ids = [change(form.format(row), row) for row in range(1, 192, 3)]
        bank = [form.format(row) for row in range(240)]
        shop = list(dict.fromkeys([*ids, *bank[:192]]))
        tables = (("bank", bank), ("shop", shop))
        read = [read_table(pl.DataFrame({"id": each, "u": 1.0}), party=party, id="id") for party, each in tables]
        assert Overlap.of(align(read), ["bank", "shop"]).notes == ()

    def test_prediction_and_all_rows(self):
        tables = clean()
        model = Federation.from_tables(tables, id="customer", label="default").train("laser", epochs=1)
        prefix = pl.Series(["ID-", "", ""] * 80)
        shop = tables["shop"].with_columns(customer=prefix + tables["shop"]["customer"])
        with pytest.warns(AnypartyWarning, match="shop would share 80 rows more but for letters or signs"):
            model.predict({"bank": tables["bank"].drop("default"), "shop": shop})
        for change, cause in (
            (lambda text, _: text.replace("k", "\u043a"), "letters that look alike"),
            (lambda text, _: f"{text}-01", "text before or after the id"),
        ):
            with pytest.raises(AlignmentError, match=f"192 would be equal but for {cause}"):
                self.notes(change, third=False)


class TestCase31RowNumbersAsIds:
    @pytest.mark.parametrize("start", [0, 1])
    @pytest.mark.parametrize("kind", [pl.Int64, pl.String, pl.Float64])
    def test_row_numbers_of_two_parties_get_a_remark(self, start, kind):
        tables = clean()
        numbers = pl.int_range(start, 240 + start, eager=True).cast(kind)
        bank = tables["bank"].with_columns(customer=numbers)
        shop = tables["shop"][:192].with_columns(customer=numbers[:192])
        made = Federation.from_tables({"bank": bank, "shop": shop}, id="customer", label="default")
        said = (
            f"the ids of bank ({start} to {239 + start}) and shop ({start} to {191 + start}) are numbers in the order"
        )
        assert sum(said in note for note in made.overlap.notes) == 1
        with pytest.warns(AnypartyWarning, match=re.escape(said)):
            model = made.train("laser", epochs=1)
        with pytest.warns(AnypartyWarning, match=re.escape(said)):
            model.predict({"bank": bank.drop("default"), "shop": shop})

    def test_other_ids_and_arrays_get_none(self):
        tables = clean()
        shuffled = tables["shop"].with_columns(customer=pl.int_range(240)).sample(192, shuffle=True, seed=1)
        bank = tables["bank"].with_columns(customer=pl.int_range(240))
        for shop in (shuffled, tables["shop"].with_columns(customer=pl.int_range(240))[10:]):
            made = Federation.from_tables({"bank": bank, "shop": shop}, id="customer", label="default")
            assert not any("in the order of the rows" in note for note in made.overlap.notes)
        u, observed = np.random.default_rng(0).normal(size=(40, 2)), np.ones((40, 2), dtype=bool)
        observed[30:, 1] = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Federation.from_arrays({"a": u, "b": u}, np.arange(40) % 2, observed=observed).train("laser", epochs=1)
