"""Ids and files as users have them, from the settings to predictions."""

import gzip

import polars as pl
import pytest
import tomli_w

from anyparty import config as settings
from anyparty.api.federation import Federation
from anyparty.errors import AlignmentError, AnypartyWarning, ConfigError, TableError
from anyparty.serving.backends import load_run

N = 120
BANK = pl.DataFrame(
    {"customer": range(1000, 1000 + N), "age": [20 + i % 37 for i in range(N)], "default": [i % 2 for i in range(N)]}
)
SHOP = pl.DataFrame({"customer": range(1000, 1000 + N), "visits": [i * 7 % 30 for i in range(N)]})
QUICK = {"epochs": 1, "method": "local"}


def federation(folder, bank, shop, federation=None, **shop_settings):
    """Write settings and tables, bytes or frames, and read them as the command line does."""
    values = {
        "federation": {"id": "customer", "label": "default", "active": "bank"} | (federation or {}),
        "parties": {"bank": {"table": "bank.csv"}, "shop": {"table": "shop.csv"} | shop_settings},
    }
    for name, table in (("bank", bank), ("shop", shop)):
        content = table if isinstance(table, bytes) else table.write_csv().encode()
        (folder / f"{name}.csv").write_bytes(content)
    (folder / "case.toml").write_text(tomli_w.dumps(values), encoding="utf-8")
    return Federation.from_config(settings.load(folder / "case.toml"))


def written(how):
    """Return BANK and SHOP with ids as text, written by two functions."""
    bank, shop = how
    return tuple(
        table.with_columns(customer=pl.Series([f(n) for n in table["customer"]]))
        for f, table in ((bank, BANK), (shop, SHOP))
    )


DIFFERENT = {
    "zeros": ((lambda n: f"{n:07}", str), ["strip-zeros"]),
    "thousands": ((lambda n: f"{n:,}", str), ["strip-separators"]),
    "hexadecimal": ((lambda n: f"{n * 7919:06X}", lambda n: f"{n * 7919:06x}"[:3] + "-" + f"{n * 7919:06x}"[3:]),
                    ["lower-case", "strip-hyphens"]),
    "case": ((lambda n: f"ab{n}", lambda n: f"AB{n}"), ["lower-case"]),
    "inner spaces": ((lambda n: f"AB {n}", lambda n: f"AB{n}"), ["strip-spaces"]),
    "full width": ((lambda n: f"Ａ{n}", lambda n: f"A{n}"), ["unicode"]),
    "invisible": ((lambda n: f"A\u200b{n}", lambda n: f"A{n}"), ["unicode"]),
    "case, hyphens and zeros": ((lambda n: f"00a-{n}", lambda n: f"A{n}"),
                                ["lower-case", "strip-hyphens", "strip-zeros"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_ids_written_differently_match_only_with_the_suggested_setting(tmp_path, name):
    """The error counts the ids that would match and names the setting; the setting matches them; nothing else does."""
    how, changes = DIFFERENT[name]
    named = "[" + ", ".join(f'"{change}"' for change in changes) + "]"
    with pytest.raises(
        AlignmentError, match=rf"120 would be equal but for .*id_normalize = {named}".replace("[", r"\[")
    ):
        federation(tmp_path, *written(how)).overlap  # noqa: B018
    both = federation(tmp_path, *written(how), federation={"id_normalize": changes})
    assert both.overlap.by_all == N
    model = both.train(**QUICK)
    answered = model.predict({name: tmp_path / f"{name}.csv" for name in ("bank", "shop")})
    assert sorted(answered.ids) == sorted(how[0](n) for n in BANK["customer"]), "as the active party's table has them"


def test_the_overlap_counts_rows_that_would_match(tmp_path):
    bank, shop = written((lambda n: f"{n:07}" if n % 2 else str(n), str))
    notes = federation(tmp_path, bank, shop).overlap.notes
    assert any(
        "60 rows more but for leading zeros" in note and 'id_normalize = ["strip-zeros"]' in note for note in notes
    )


def test_an_unknown_id_normalization_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no change 'strip-zero'.*strip-zeros"):
        federation(tmp_path, BANK, SHOP, federation={"id_normalize": ["strip-zero"]})


def two_columns(table):
    return table.with_columns(branch=pl.col("customer") % 10, account=pl.col("customer") // 10).drop("customer")


COMPOSITE = {
    "numbers": (two_columns(BANK), two_columns(SHOP)),
    "shuffled": (two_columns(BANK), two_columns(SHOP).sample(fraction=1.0, shuffle=True, seed=1)),
    "text": tuple(two_columns(each).with_columns(branch=pl.format("b {}", "branch")) for each in (BANK, SHOP)),
    "dates": tuple(two_columns(each).with_columns(branch=pl.date(2020, 1, 1) + pl.duration(days=pl.col("branch")))
                   for each in (BANK, SHOP)),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPOSITE)
def test_ids_of_two_columns_are_aligned(name):
    bank, shop = COMPOSITE[name]
    both = Federation.from_tables({"bank": bank, "shop": shop}, id=["branch", "account"], label="default")
    assert both.overlap.by_all == N
    assert "branch" not in both.tables["shop"].kinds
    frame = both.train(**QUICK).predict({"bank": bank, "shop": shop}).frame()
    assert frame.select("branch", "account").equals(bank.select("branch", "account"))


def test_ids_of_two_columns_are_not_concatenated():
    """1 and 23 are another row than 12 and 3."""
    bank = pl.DataFrame({"a": ["1", "12"], "b": ["23", "3"], "z": [1, 2], "y": [0, 1]})
    shop = pl.DataFrame({"a": ["1", "12"], "b": ["23", "4"], "x": [0, 1]})
    overlap = Federation.from_tables({"bank": bank, "shop": shop}, id=["a", "b"], label="y").overlap
    assert (overlap.rows, overlap.by_all) == (3, 1)


def test_parties_with_different_numbers_of_id_columns_are_refused():
    tables = {"bank": two_columns(BANK), "shop": SHOP}
    ids = {"bank": ["branch", "account"], "shop": "customer"}
    with pytest.raises(AlignmentError, match="different numbers of id columns"):
        Federation.from_tables(tables, id=ids, label="default").overlap  # noqa: B018


def test_a_saved_model_reads_tables_as_in_training(tmp_path):
    bank = two_columns(BANK)
    shop = two_columns(SHOP).with_columns(branch=pl.format("0{}", "branch"))
    tables = {"bank": tmp_path / "bank.csv", "shop": tmp_path / "shop.csv"}
    bank.write_csv(tables["bank"])
    tables["shop"].write_bytes(pl.concat([shop, shop[:7]]).write_csv(separator="^").encode("utf-16"))
    both = Federation.from_tables(
        tables, id=["branch", "account"], label="default", id_normalize=["strip-zeros"], duplicates={"shop": "mean"},
        file={"shop": {"separator": "^"}},
    )  # fmt: skip
    assert both.overlap.by_all == N
    with pytest.warns(AnypartyWarning, match="7 of 127 rows have the id of another row"):
        model = both.train(**QUICK)
    model.save(tmp_path / "model")
    with pytest.warns(AnypartyWarning, match="7 of 127 rows have the id of another row"):
        again = type(model).load(tmp_path / "model").predict(tables)
    with pytest.warns(AnypartyWarning, match="7 of 127 rows have the id of another row"):
        assert again.frame().equals(model.predict(tables).frame())


DOUBLED = pl.DataFrame(
    {
        "customer": [1000, 1000, 1001, 1001, 1001, *range(1002, 1000 + N)],
        "visits": [1, 2, 3, 6, None, *([5] * (N - 2))],
        "town": ["b", "a", "x", "y", "y", *(["z"] * (N - 2))],
    }
)


@pytest.mark.parametrize(
    ("duplicates", "rows"),
    [
        ("first", [(1, "b"), (3, "x")]),
        ("last", [(2, "a"), (None, "y")]),
        ("mean", [(1.5, "b"), (4.5, "y")]),
    ],
)
def test_duplicate_ids_follow_the_setting(tmp_path, duplicates, rows):
    with pytest.raises(
        TableError, match=r"'1000' in rows 1, 2; '1001' in rows 3, 4, 5; .*duplicates = \"first\""
    ) as one:
        federation(tmp_path, BANK, DOUBLED)
    assert "[parties.shop]" in str(one.value)
    both = federation(tmp_path, BANK, DOUBLED, duplicates=duplicates)
    assert both.tables["shop"].columns.rows()[:2] == rows
    assert any("3 of 123 rows have the id of another row" in note for note in both.overlap.notes)
    assert both.overlap.by_all == N


def test_duplicate_rows_with_different_labels_are_refused():
    bank = pl.concat([BANK, BANK[:1].with_columns(default=1 - pl.col("default"))])
    tables = {"bank": bank, "shop": SHOP}
    with pytest.raises(TableError, match="the rows of 1 ids have different labels"):
        Federation.from_tables(tables, id="customer", label="default", duplicates="mean")
    Federation.from_tables(tables, id="customer", label="default", duplicates="first")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["1.23E+11", "1.24E+11"], r"a spreadsheet shortened: '1.23E\+11' in row 1"),
        (["4,5E+12", "7"], "a spreadsheet shortened"),
        ([2.0**53, 1.0], r"too large for Float64 to be exact, '9007199254740992.0' in row 1"),
        (["a", None], "no id in row 2"),
    ],
)
def test_damaged_ids_are_refused(ids, said):
    with pytest.raises(TableError, match=said):
        Federation.from_tables({"bank": pl.DataFrame({"id": ids, "y": [0, 1]})}, label="y")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([f"{n}00000000000000"[:17] for n in range(1000, 1030)], "end in zeros, such as"),
        ([*map(str, range(39)), "total"], "1 of 40 ids are not whole numbers, all others are: 'total' in row 40"),
        ([*(f"c{n}" for n in range(39)), "7"], "1 of 40 ids are whole numbers, no other is: '7' in row 40"),
    ],
)
def test_suspicious_ids_cause_a_remark(ids, said):
    frame = pl.DataFrame({"id": ids, "x": range(len(ids)), "y": [n % 2 for n in range(len(ids))]})
    notes = Federation.from_tables({"bank": frame}, label="y").overlap.notes
    assert any(said in note for note in notes)


@pytest.mark.parametrize(
    "ids",
    [
        pl.Series([*range(N)], dtype=pl.Int32),
        pl.Series([f"{n:04}" for n in range(N)]),
        pl.Series([float(n) for n in range(N)]),
        pl.Series([*range(N)]).cast(pl.Date),
    ],
)
def test_ids_return_with_the_type_of_the_table(ids):
    bank = BANK.with_columns(customer=ids)
    shop = SHOP.with_columns(customer=ids.cast(pl.String) if ids.dtype == pl.Int32 else ids)
    model = Federation.from_tables({"bank": bank, "shop": shop}, id="customer", label="default").train(**QUICK)
    answered = model.predict({"bank": bank, "shop": shop})
    assert answered.frame()["id"].equals(ids.alias("id"))
    assert answered.frame()["id"].dtype == ids.dtype
    assert answered.ids == tuple(ids.to_list())


def test_a_service_finds_ids_as_training_compared_them(tmp_path):
    bank, shop = written((lambda n: f"{n:07}", str))
    both = federation(tmp_path, bank, shop, federation={"id_normalize": ["strip-zeros"]})
    both.train(**QUICK, folder=tmp_path / "run")
    predictor, _ = load_run(tmp_path / "run")
    assert predictor.index.find(["0001000", "1000", " 01000", "9"])[:3] == [predictor.index.find(["1000"])[0]] * 3
    assert predictor.index.find(["9", "0001000"])[0] is None


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (SHOP.write_csv(separator=";").encode(), "separator ';'"),
        (gzip.compress(SHOP.write_csv().encode()), "gzip"),
        (b"sep=,\n" + SHOP.write_csv().encode(), "separator ','"),
        (SHOP.write_csv(separator="\t").encode("utf-16"), "utf-16"),
    ],
)
def test_alignment_shows_the_recognised_file_format(tmp_path, content, shown):
    both = federation(tmp_path, BANK, content)
    assert shown in both.tables["shop"].read_as
    assert both.overlap.by_all == N
    assert both.files.row_count == 2


@pytest.mark.parametrize("path", [r"C:\data\shop.csv", r"C:\Users\me\shop.csv", r"..\xyz\shop.csv"])
def test_a_windows_path_in_double_quotes_causes_a_clear_error(tmp_path, path):
    (tmp_path / "case.toml").write_text(f'[parties.shop]\ntable = "{path}"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"write / for each .* or use single quotes"):
        settings.load(tmp_path / "case.toml")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"bank": {"quote": "'"}}, "file: quote applies to a file, and the table of party 'bank' is a data frame"),
        ({"shop": {"limits": {"x": "half"}}}, "file: there is no setting 'limits' of a file; "),
    ],
)
def test_a_file_setting_without_effect_is_an_error(tmp_path, file, message) -> None:
    bank = pl.DataFrame({"id": range(40), "y": [k % 2 for k in range(40)], "x": [f"{k},5" for k in range(40)]})
    bank.select("id", z="x").write_csv(tmp_path / "shop.csv")
    tables = {"bank": bank, "shop": tmp_path / "shop.csv"}
    with pytest.raises(ConfigError, match=message):
        Federation.from_tables(tables, label="y", file=file)


class TestSettingsOfFilesAndDataFrames:
    """Prices such as 1.234 and 20.500 mean 1234 and 20500 if the decimal mark is a comma."""

    PRICES = [1000.5 + 37 * row for row in range(40)]
    TEXTS = [f"{price:,.1f}".replace(",", " ").replace(".", ",").replace(" ", ".") for price in PRICES]
    WHOLE = [text.partition(",")[0] for text in TEXTS]

    def bank(self, texts):
        return pl.DataFrame({"id": range(40), "y": [k % 2 for k in range(40)], "x": texts})

    @pytest.mark.parametrize("convert", [pl.DataFrame.clone, pl.DataFrame.to_pandas, pl.DataFrame.to_arrow])
    @pytest.mark.parametrize("texts", [TEXTS, WHOLE])
    def test_the_decimal_mark_applies_to_data_frames(self, convert, texts):
        tables = {"bank": convert(self.bank(texts))}
        made = Federation.from_tables(tables, label="y", file={"bank": {"decimal": ","}})
        expected = self.PRICES if texts is self.TEXTS else [price // 1 for price in self.PRICES]
        assert made.tables["bank"].columns["x"].to_list() == expected

    @pytest.mark.parametrize("suffix", ["xlsx", "parquet"])
    def test_the_decimal_mark_applies_to_text_in_other_files(self, tmp_path, suffix):
        file = tmp_path / f"bank.{suffix}"
        bank = self.bank(self.WHOLE)
        if suffix == "xlsx":
            bank.to_pandas().to_excel(file, index=False)
        else:
            bank.write_parquet(file)
        made = Federation.from_tables({"bank": file}, label="y", file={"bank": {"decimal": ","}})
        assert made.tables["bank"].columns["x"].to_list() == [price // 1 for price in self.PRICES]

    @pytest.mark.parametrize("trained", ["frame", "csv"])
    @pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
    def test_a_model_reads_both_kinds_of_table(self, tmp_path, trained):
        kinds = {"frame": self.bank(self.TEXTS), "csv": tmp_path / "bank.csv"}
        self.bank(self.TEXTS).write_csv(kinds["csv"], separator=";")
        made = Federation.from_tables({"bank": kinds[trained]}, label="y", file={"bank": {"decimal": ","}})
        model = made.train("local", epochs=1)
        first, second = (model.predict({"bank": each}).scores.tolist() for each in kinds.values())
        assert first == second

    @pytest.mark.parametrize("setting", [{"separator": ";"}, {"quote": "'"}, {"encoding": "cp1252"}, {"sheet": "x"}])
    def test_a_setting_without_effect_on_a_data_frame_gets_a_remark(self, setting):
        ((name, value),) = setting.items()
        config = settings.Config.of({"federation": {"label": "y"}, "parties": {"bank": {"table": "b.csv", **setting}}})
        made = Federation.from_config(config, {"bank": self.bank(self.PRICES)})
        (note,) = made.tables["bank"].notes
        assert note.startswith(f"party 'bank', data frame: {name} = {value!r} has no effect")

    def test_a_sheet_of_a_csv_file_gets_a_remark(self, tmp_path):
        self.bank(self.PRICES).write_csv(tmp_path / "bank.csv")
        made = Federation.from_tables({"bank": tmp_path / "bank.csv"}, label="y", file={"bank": {"sheet": 1}})
        assert "sheet = 1 has no effect, because this table is not a workbook" in made.tables["bank"].notes[0]

    @pytest.mark.filterwarnings("ignore::anyparty.errors.AnypartyWarning")
    def test_commas_that_training_did_not_have_get_a_remark(self):
        model = Federation.from_tables({"bank": self.bank(self.PRICES)}, label="y").train("local", epochs=1)
        commas = [f"{1000 + 37 * row:,}" for row in range(40)]
        with pytest.warns(AnypartyWarning, match="40 numbers with a comma, such as '1,000' as 1000; training"):
            model.predict({"bank": self.bank(commas)})


@pytest.mark.parametrize("mark", ["\u00a0", "\u200b"])
def test_an_invisible_character_in_a_column_name(tmp_path, mark):
    (tmp_path / "bank.csv").write_text(f"id{mark},y,x\n1,0,2\n2,1,3\n", encoding="utf-8")
    with pytest.raises(TableError) as stopped:
        Federation.from_tables({"bank": tmp_path / "bank.csv"}, label="y")
    assert f"? The first line has this name beside the invisible character {mark!r}: remove it" in str(stopped.value)
