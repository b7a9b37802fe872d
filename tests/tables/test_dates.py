"""Columns of dates and times, and of free text, from cells to numbers."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from anyparty import Federation
from anyparty.api.model import Model
from anyparty.errors import ConfigError, TableError
from anyparty.tables.preprocessing import HASHES, Prepare
from anyparty.tables.reading_rules import ReadingRules
from anyparty.tables.table import read_table

START = dt.datetime(2019, 11, 20, 8, 30)
MOMENTS = [START + dt.timedelta(days=5 * row, minutes=97 * row) for row in range(60)]
DAYS = [moment.date() for moment in MOMENTS]


def read(cells, *, kind=None, expect=None, **rules):
    frame = pl.DataFrame({"id": range(len(cells)), "seen": cells})
    types = {} if kind is None else {"seen": kind}
    return read_table(frame, party="clinic", id="id", types=types, expect=expect, rules=ReadingRules(**rules))


def written(format_, cells=DAYS):
    return [cell.strftime(format_) for cell in cells]


def stops(cells, *parts, **rules):
    with pytest.raises(TableError) as stopped:
        read(cells, **rules)
    for part in ("party 'clinic', data frame: column 'seen'", *parts):
        assert part in str(stopped.value)


class TestRead:
    @pytest.mark.parametrize(
        ("format_", "order"),
        [("%Y-%m-%d", "year-first"), ("%Y/%m/%d", "year-first"), ("%d.%m.%Y", "day-first"), ("%d/%m/%Y", "day-first"),
         ("%m/%d/%Y", "month-first"), ("%d %b %Y", "year-first"), ("%d-%b-%Y", "year-first"),
         ("%B %d, %Y", "year-first")],
    )  # fmt: skip
    def test_the_cells_decide_the_order(self, format_, order):
        table = read([*written(format_), None, "-", "NA"])
        assert table.kinds == {"seen": "date"}
        assert table.columns["seen"].to_list() == [*DAYS, None, None, None]
        said = f"is read as dates ({order}), such as {DAYS[0].strftime(format_)!r} as 2019-11-20; if it holds no dates"
        assert [said in note for note in table.notes if "is read as" in note] == [True] * (order != "year-first")

    def test_dates_with_one_meaning_get_no_remark(self):
        assert read(DAYS).notes == read(MOMENTS).notes == read(written("%Y-%m-%d")).notes == ()
        assert "column 'seen' is read as dates (day-first)" in read(written("%d.%m.%Y")).notes[0]

    @pytest.mark.parametrize(("format_", "order"), [("%d.%m.%Y", "day-first"), ("%m/%d/%Y", "month-first")])
    def test_dates_with_the_year_first_may_be_among_others(self, format_, order):
        texts = [day.strftime(each) for day, each in zip(DAYS, ["%Y-%m-%d", format_, "%d %b %Y"] * 20, strict=True)]
        table = read(texts)
        assert table.columns["seen"].to_list() == DAYS
        assert f"is read as dates ({order})" in table.notes[0]

    @pytest.mark.parametrize("word", ["never", "n.k.", "ongoing"])
    def test_a_word_among_dates_stops(self, word):
        texts = [*written("%d.%m.%Y"), *[word] * 20]
        stops(texts, f"has dates except for '{word}' (20 cells)", f'missing = {{seen = ["{word}"]}}')
        assert read(texts, missing={"seen": (word,)}).columns["seen"].to_list() == [*DAYS, *[None] * 20]

    def test_years_of_two_digits_among_named_months_stop(self):
        texts = [*written("%d.%m.%y", DAYS[:30]), *written("%d-%b-%Y", DAYS[30:])]
        stops(texts, "it looks like dates", "write all years with four digits, such as the year of '20.11.19'")

    @pytest.mark.parametrize("format_", ["%d.%m.%y", "%m/%d/%y", "%d-%b-%y", "%d.%m.%y %H:%M"])
    def test_years_of_two_digits_stop_with_a_setting_that_works(self, format_):
        texts = written(format_, MOMENTS)
        stops(texts, f'write parties.clinic.dates = {{seen = "{format_}"}}')
        for setting in ({"kind": "date"}, {"dates": {"seen": "day-first"}}):
            stops(texts, "The years have two digits: write", f'dates = {{seen = "{format_}"}}', **setting)
        table = read(texts, dates={"seen": format_})
        assert table.columns["seen"].cast(pl.Date).to_list() == DAYS
        assert "years of two digits are read as 1970 to 2069" in table.notes[0]

    def test_few_dates_with_years_of_two_digits_get_a_setting_that_works(self):
        texts = ["01.02.24", "05.06.23", "07.08.22"] * 10
        (note,) = read(texts).notes
        assert """dates = {seen = "%d.%m.%y"} (in Python: dates={'clinic': {'seen': '%d.%m.%y'}})""" in note
        assert ' or "%m.%d.%y" or "%y.%m.%d", or keep them' in note
        assert read(texts, dates={"seen": "%d.%m.%y"}).columns["seen"][0] == dt.date(2024, 2, 1)

    def test_a_format_with_four_digits_does_not_read_two(self):
        stops(written("%d.%m.%y"), "The years have two digits", dates={"seen": "%d.%m.%Y"})

    def test_few_dates_beside_a_word_get_a_remark(self):
        (note,) = read(["2021-09-28", "2024-06-24", "2023-04-01", "never", "never"] * 8).notes
        said = "is read as categories: 24 of its cells are dates, such as '2021-09-28', and 16 are not, such as 'never'"
        assert said in note

    @pytest.mark.parametrize("format_", ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%y", "%d-%b-%y"])
    def test_fewer_than_half_of_the_cells_are_dates(self, format_):
        days = written(format_)
        texts = [*days[:10], *["never", "on Monday"] * 15]
        (note,) = read(texts).notes
        assert f"10 of its cells are dates, such as {days[0]!r}, and 30 are not" in note
        assert 'missing = {seen = ["never", "on Monday"]}' in note

    def test_codes_that_resemble_dates_have_no_remark(self):
        for codes in (["20-00-00", "12-11-56", "40-47-84"], ["1.10.12", "2.4.10", "beta"], ["2-3 years", "1-2 years"]):
            assert read(codes * 20).notes == ()

    def test_many_words_among_dates_are_categories_with_a_remark(self):
        table = read([*written("%Y-%m-%d", DAYS[:40]), *"abcdefghij"])
        assert table.kinds == {"seen": "categorical"}
        assert "is read as categories: 40 of its cells are dates, such as '2019-11-20', and 10 are" in table.notes[0]
        assert read([f"{number}-ABC-2024" for number in range(10, 40)] * 2).notes == ()
        (note,) = read([*map(str, range(40)), *"abcdefghij"] * 2).notes
        assert "is read as categories: 80 of its cells are numbers, such as '0', and 20 are not" in note

    @pytest.mark.parametrize(
        "format_", ["%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y-%m-%d %I:%M%p"]
    )
    def test_times(self, format_):
        table = read(written(format_, MOMENTS))
        assert table.columns["seen"].to_list() == MOMENTS
        assert all("dates and times" in note for note in table.notes)
        assert len(table.notes) == (not format_.startswith("%Y"))

    @pytest.mark.parametrize("cells", [DAYS, MOMENTS, [*DAYS, None]])
    def test_types_of_a_data_frame(self, cells):
        assert read(cells).columns["seen"].to_list() == cells

    def test_midnight_alone_is_no_time(self):
        midnights = [dt.datetime.combine(day, dt.time()) for day in DAYS]
        assert read(midnights).columns["seen"].to_list() == DAYS
        assert read(written("%Y-%m-%d %H:%M:%S", midnights)).columns["seen"].to_list() == DAYS

    def test_time_zones_are_converted_to_utc(self):
        table = read([f"{text}+02:00" for text in written("%Y-%m-%d %H:%M:%S", MOMENTS)])
        assert table.columns["seen"].to_list() == [moment - dt.timedelta(hours=2) for moment in MOMENTS]
        assert "converted to UTC" in table.notes[0]
        zoned = pl.Series(MOMENTS).dt.replace_time_zone("Asia/Tokyo")
        assert read(zoned).columns["seen"].to_list() == [moment - dt.timedelta(hours=9) for moment in MOMENTS]
        late = read([f"{text} -0330" for text in written("%d/%m/%Y %H:%M", MOMENTS)])
        assert late.columns["seen"][0] == MOMENTS[0] + dt.timedelta(hours=3, minutes=30)

    def test_a_mixture_of_times_with_and_without_zone_stops(self):
        texts = written("%Y-%m-%d %H:%M", MOMENTS)
        texts[3] += "Z"
        stops(texts, "times with and without a time zone: ", "in row 4 and ", "in row 1")

    def test_an_ambiguous_order_stops_and_the_setting_decides(self):
        early = [dt.date(2000 + row, 1 + row % 12, 1 + row * 5 % 12) for row in range(40)]
        texts = written("%d/%m/%Y", early)
        stops(texts, "order is not evident, such as '06/02/2001' in row 2, which may be 2001-02-06 or 2001-06-02",
              'dates = {seen = "day-first"}')  # fmt: skip
        assert read(texts, dates={"seen": "day-first"}).columns["seen"].to_list() == early
        assert read(texts, dates={"seen": "%d/%m/%Y"}).columns["seen"].to_list() == early
        other = read(texts, dates={"seen": "month-first"}).columns["seen"][1]
        assert other == dt.date(2001, 6, 2)
        stops(texts[:5], "order is not evident", kind="date")
        assert read(texts[:5]).kinds == {"seen": "categorical"}

    def test_a_mixture_of_orders_stops(self):
        stops(written("%d/%m/%Y", DAYS[:40]) + written("%m/%d/%Y", DAYS[40:]), "not dates", "in row", kind="date")
        stops([*written("%Y-%m-%d"), "03/01/2020"], "order is not evident, such as '03/01/2020' in row 61")
        note = read([*written("%Y-%m-%d"), "13/01/2020"]).notes[0]
        assert "is read as dates (day-first), such as '13/01/2020' as 2020-01-13" in note

    @pytest.mark.parametrize("format_", ["%d.%m.%y", "%Y%m%d", "%y-%j"])
    def test_a_format(self, format_):
        assert read(written(format_), dates={"seen": format_}).columns["seen"].to_list() == DAYS

    def test_numbers_of_eight_digits(self):
        numbers = [int(text) for text in written("%Y%m%d")]
        assert read(numbers).kinds == {"seen": "numeric"}
        assert read(numbers, dates={"seen": "%Y%m%d"}).columns["seen"].to_list() == DAYS

    @pytest.mark.parametrize("bad", ["0000-00-00", "2021-02-30", "soon"])
    def test_cells_that_are_not_dates(self, bad):
        stops(
            [*written("%Y-%m-%d"), bad], f"cells that are not dates: {bad!r} in row 61", f'missing = {{seen = ["{bad}"]'
        )
        assert read([*written("%Y-%m-%d"), bad], missing={"seen": (bad,)}).columns["seen"].null_count() == 1

    @pytest.mark.parametrize("format_", ["%Y-%m-%d", "%d.%m.%Y"])
    def test_a_date_that_marks_missing_cells(self, format_):
        cells = [*DAYS, dt.date(1900, 1, 1)]
        for given in (cells, written(format_, cells)):
            assert read(given, missing={"seen": ("1900-01-01",)}).columns["seen"].to_list() == [*DAYS, None]

    @pytest.mark.parametrize("cells", [["1.2.3"] * 40, ["10.0.0.1", "10.0.0.2"], ["12-34-5678"] * 40, ["2020-13"] * 9])
    def test_other_text_stays_categorical(self, cells):
        assert read(cells).kinds == {"seen": "categorical"}

    def test_declared_categories_and_numbers(self):
        assert read(written("%Y-%m-%d"), kind="categorical").kinds == {"seen": "categorical"}
        assert read(DAYS, kind="categorical").columns["seen"][0] == "2019-11-20"
        stops(DAYS, "numbers are expected there", kind="numeric")

    def test_settings_that_name_no_column(self):
        for setting in ({"dates": {"sen": "day-first"}}, {"missing": {"sen": ("x",)}}, {"limits": {"sen": "half"}}):
            with pytest.raises(TableError, match=r"no column 'sen', named as .*; did you mean 'seen'"):
                read(DAYS, **setting)
        with pytest.raises(ConfigError, match=r"expected 'year-first', .*, not 'dmy'"):
            Federation.from_tables({"clinic": pl.DataFrame({"id": [1]})}, dates={"clinic": {"seen": "dmy"}})


class TestNumbers:
    def test_by_hand(self):
        """The reference is the earliest training row, not the earliest row."""
        table = read([dt.datetime(2024, 3, 3, 18), dt.datetime(2024, 3, 1, 6), None, dt.datetime(2020, 1, 1)])
        prepare = Prepare.fit(table, np.array([0, 1, 2]), scale=False)
        assert prepare.names == ("seen: days", "seen: year", "seen: month", "seen: weekday", "seen: hour")
        assert prepare.kinds == {"seen": "date"}
        mean = [1.5, 2024, 3, 6, 12]
        assert prepare.apply(table, new=False).tolist() == [
            [2.75, 2024, 3, 7, 18], [0.25, 2024, 3, 5, 6], mean, [-1521, 2020, 1, 3, 0]]  # fmt: skip
        assert prepare.features(table, new=False).gaps.tolist() == [[row == 2] * 5 for row in range(4)]
        assert Prepare.from_json(prepare.to_json()) == prepare

    def test_whole_days_have_no_hour(self):
        assert Prepare.fit(read(DAYS), np.arange(60)).width == 4

    def test_restored_from_days(self):
        prepare = Prepare.fit(read(MOMENTS), np.arange(60))
        restored = prepare.table(prepare.units(prepare.apply(read(MOMENTS), new=False)))["seen"].to_list()
        assert max(abs(a - b) for a, b in zip(restored, MOMENTS, strict=True)) < dt.timedelta(seconds=10)
        prepare = Prepare.fit(read(DAYS), np.arange(60))
        assert prepare.table(prepare.units(prepare.apply(read(DAYS), new=False)))["seen"].to_list() == DAYS

    def test_a_column_with_the_name_of_a_number(self):
        table = read_table(pl.DataFrame({"id": [1, 2], "seen": DAYS[:2], "seen: year": [1, 2]}), party="a", id="id")
        with pytest.raises(TableError, match="'seen: year' has the name of a number"):
            Prepare.fit(table, np.arange(2))

    @pytest.mark.parametrize("here", ["%d.%m.%Y", "%Y-%m-%d"])
    def test_prediction_reads_as_training_did(self, here):
        training = read(written("%d.%m.%Y"))
        later = [dt.date(2024, 3, 2), dt.date(2024, 2, 3)]  # two orders are possible here
        table = read(written(here, later), expect=training.kinds, **dict(training.rules))
        assert table.columns["seen"].to_list() == later
        with pytest.raises(TableError, match=r"trained on dates that are written day-first"):
            read(["2/14/2024"], expect=training.kinds, **dict(training.rules))

    def test_declared_dates_have_no_remark(self):
        assert read(written("%d.%m.%Y"), dates={"seen": "day-first"}).notes == ()
        assert read(written("%d.%m.%Y"), dates={"seen": "%d.%m.%Y"}).notes == ()
        assert read(written("%d.%m.%Y"), kind="date").notes == ()

    def test_prediction_with_another_zone_stops(self):
        training = read(written("%Y-%m-%d %H:%M", MOMENTS))
        with pytest.raises(TableError, match="times with a time zone, and training had times without one"):
            read(["2024-01-01 10:00Z"], expect=training.kinds, **dict(training.rules))
        days = read(["2024-01-01"], expect=training.kinds, **dict(training.rules))
        assert days.columns["seen"].to_list() == [dt.datetime(2024, 1, 1)]


WORDS = [f"note {row} on the {('red', 'blue')[row % 2]} car, number {row * 7}" for row in range(120)]


class TestText:
    def test_left_out_unless_declared(self):
        frame = pl.DataFrame({"id": range(120), "seen": WORDS, "size": range(120)})
        table = read_table(frame, party="clinic", id="id")
        assert table.kinds == {"size": "numeric"}
        assert "to keep it, write parties." in table.notes[0]

    def test_hashed_words(self):
        table = read([*WORDS, None, "red car"], kind="text")
        assert table.kinds == {"seen": "text"}
        prepare = Prepare.fit(table, np.arange(100))
        out = prepare.apply(table)
        assert out.shape == (122, HASHES) == (122, len(prepare.names))
        assert np.linalg.norm(out, axis=1) == pytest.approx([1] * 120 + [0, 1], abs=1e-6)
        assert out[0] @ out[2] > out[0] @ out[1] + 0.1, "texts that share words are closer"
        assert "car" not in str(prepare.to_json())
        again = Prepare.from_json(prepare.to_json())
        assert (again.apply(read(WORDS[::-1], expect=prepare.kinds)) == out[119::-1]).all()

    def test_beside_other_kinds(self):
        frame = pl.DataFrame(
            {"id": range(120), "note": WORDS, "town": ["Ulm", "Bonn"] * 60, "day": DAYS * 2, "n": range(120)}
        )
        table = read_table(frame, party="clinic", id="id", types={"note": "text"})
        prepare = Prepare.fit(table, np.arange(120))
        assert list(prepare.kinds.items()) == [
            ("n", "numeric"),
            ("town", "categorical"),
            ("day", "date"),
            ("note", "text"),
        ]
        out = prepare.apply(table)
        assert out.shape == (120, 1 + 4 + 2 + HASHES) == (120, len(prepare.names))
        assert out[:2, 5:7].tolist() == [[0, 1], [1, 0]]
        assert np.linalg.norm(out[:, 7:], axis=1) == pytest.approx(np.ones(120), abs=1e-6)


def test_a_federation_with_dates_and_text_predicts_from_its_run(tmp_path):
    rows = 60
    bank = pl.DataFrame({"id": range(rows), "y": [row % 2 for row in range(rows)], "opened": written("%d.%m.%Y")})
    shop = pl.DataFrame({"id": range(rows), "note": WORDS[:rows], "at": MOMENTS})
    federation = Federation.from_tables(
        {"bank": bank, "shop": shop}, label="y", types={"shop": {"note": "text"}, "bank": {"opened": "date"}},
        dates={"shop": {"at": "year-first"}},
    )  # fmt: skip
    assert "text" in str(federation.reading)
    model = federation.train(epochs=2, method="laser", folder=tmp_path / "run")
    new = {"bank": bank.head(3), "shop": shop.head(3)}
    predicted = model.predict(new).frame()
    assert_frame_equal(predicted, model.predict({"bank": bank, "shop": shop}).frame().head(3), abs_tol=1e-6)
    assert_frame_equal(predicted, Model.load(tmp_path / "run").predict(new).frame())
