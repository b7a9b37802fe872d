"""Training at separate sites gives the same run as in one process, with only messages between the sites."""

import asyncio
import contextlib
import json
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import tomli_w
import torch

from anyparty.api.federation import Federation
from anyparty.artifacts.model_files import WEIGHTS, ModelSummary, sha256
from anyparty.config import Config
from anyparty.core.types import ChannelWrapper
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.deployment.site.alignment_cache import StoredAlignment
from anyparty.deployment.site.site_prediction import predict_at_site
from anyparty.deployment.site.site_training import SiteParty, train_at_site
from anyparty.errors import ConfigError, PartyLost, ResumeError, TableError
from anyparty.serving.loaded_party import load_party
from anyparty.training import control_messages
from anyparty.transport import memory

NAMES = ("bank", "shop", "clinic")


@dataclass(frozen=True)
class Site:
    party: str
    table: Path | None
    folder: Path
    active: str = "bank"
    parties: tuple[str, ...] = NAMES


def world(home: Path, n: int = 240) -> dict[str, Site]:
    """Create three sites with partly the same ids; the label depends on a column of the shop."""
    rng = np.random.default_rng(3)
    x, ids = rng.normal(size=(n, 4)), [f"person {i}" for i in range(n)]
    frames = {
        "bank": pl.DataFrame({"id": ids, "income": x[:, 0], "y": (x[:, 1] > 0).astype(int)}),
        "shop": pl.DataFrame({"id": ids, "spent": x[:, 1], "visits": x[:, 2]}),
        "clinic": pl.DataFrame({"id": ids, "pulse": x[:, 3]}),
    }
    sites = {}
    for place, (name, frame) in enumerate(frames.items()):
        (home / name).mkdir(parents=True)
        theirs = np.random.default_rng(place).permutation(n)[: 4 * n // 5]
        frame[theirs].write_csv(home / name / "table.csv")
        sites[name] = Site(name, home / name / "table.csv", home / name / "runs")
    return sites


def with_two_id_columns(table: Path) -> Path:
    """Write a table with a branch, a text with leading zeros, and an account, a whole number, in place of the id."""
    number = pl.col("id").str.extract(r"(\d+)").cast(int)
    columns = (pl.format("00{}", number % 7).alias("branch"), (number // 7).alias("account"))
    pl.read_csv(table).select(*columns, pl.exclude("id")).write_parquet(table.with_suffix(".parquet"))
    return table.with_suffix(".parquet")


def settings(**train) -> Config:
    return Config.of(
        {
            "federation": {"label": "y", "active": "bank"},
            "parties": {name: {} for name in NAMES},
            "method": {"name": "laser", "embedding": 8},
            "train": {"epochs": 6, "checkpoint_every": 2, **train},
            "optimizer": {"lr": 0.01},
        }
    )


def run(sites: dict[str, Site], config: Config, wrap=lambda channel: channel, **how):
    def part(site: Site, net):
        return train_at_site(site, config, net, **how)

    return memory.play({name: partial(part, site) for name, site in sites.items()}, wrap)


def trained_again(sites: dict[str, Site], but: str) -> None:
    """Train again for longer, then restore one party's former folder, as from a backup."""
    folder, copy = sites[but].folder, sites[but].folder.with_name("copy")
    shutil.copytree(folder, copy)
    run(sites, settings(epochs=4, keep="last"))
    shutil.rmtree(folder)
    copy.rename(folder)


def weights(sites: dict[str, Site]) -> dict[str, bytes]:
    return {n: (site.folder / "parties" / n / "model.safetensors").read_bytes() for n, site in sites.items()}


def test_each_site_trains_and_stores_only_its_own_model_part(tmp_path):
    sites = world(tmp_path, n=600)
    told = run(sites, settings(epochs=30))
    assert told["bank"]["evaluation"]["overall"]["accuracy"] > 0.7  # positions are random: .83 to .95 in twelve runs
    assert told["shop"]["evaluation"] is None
    assert [line["kind"] for line in told["bank"]["evaluation"]["worth"]["lines"]] == ["own", "all"]
    for name, site in sites.items():
        assert [path.name for path in (site.folder / "parties").iterdir()] == [name]
        kept = json.loads((site.folder / "model.json").read_text())["method"]
        assert (kept["name"], kept["embedding"]) == ("laser", 8)
        assert {"tasks", "heads"} < kept.keys(), "a later version may have other defaults"
    assert '"classes"' not in (sites["shop"].folder / "model.json").read_text()


@pytest.mark.parametrize("incremental", [False, True])
def test_the_state_of_an_alignment_is_deleted_unless_it_is_incremental(tmp_path, incremental):
    sites = world(tmp_path)
    config = settings(epochs=1)
    config = replace_federation(config, incremental=incremental)
    run(sites, config)
    for site in sites.values():
        assert (site.folder / "alignment.state" / "state.json").exists() == incremental
        done, total = json.loads((site.folder / "record.json").read_text())["aligning"]
        assert done == total > 0
    with sites["shop"].table.open("a") as file:
        file.write("new person 0,1.0,2.0\n")
    points = []

    def count_points(channel):
        return PointCounter(channel, points)

    run(sites, config, count_points)
    assert sum(points) == (1 if incremental else 3 * 192 + 1 - 192)


def replace_federation(config, **changes):
    return config.model_copy(update={"federation": config.federation.model_copy(update=changes)})


@dataclass
class PointCounter(ChannelWrapper):
    """A channel that counts the points that reach the active party."""

    points: list

    async def send(self, to, tag, tensors):
        if tag == "align-tokens":
            self.points.append(len(tensors["points"]))
        return await self.channel.send(to, tag, tensors)


def test_only_the_active_party_stores_the_hashes_of_all_model_parts(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    kept = {name: sha256(site.folder / "parties" / name / WEIGHTS) for name, site in sites.items()}
    told = {name: json.loads((site.folder / "model.json").read_text())["parts"] for name, site in sites.items()}
    assert told == {"bank": kept, "shop": {"shop": kept["shop"]}, "clinic": {"clinic": kept["clinic"]}}


def test_a_party_lost_at_the_end_of_training_has_no_model_part():
    class Net:
        me = "bank"

        async def recv(self, frm, tag, expect):
            if frm == "shop":
                raise PartyLost("shop", "its process ended")
            return {"hash": control_messages.hash_tensor("ab" * 32)}

    found, lost = asyncio.run(control_messages.gather_weights_hashes(Net(), ["shop", "clinic"]))
    assert (found, lost) == ({"clinic": "ab" * 32}, {"shop": "its process ended"})


def test_a_second_run_with_the_stored_alignment_gives_the_same_weights(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    first = weights(sites)
    run(sites, settings())
    assert weights(sites) == first


def test_a_changed_table_is_aligned_again(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    kept = {name: (site.folder / "alignment.safetensors").read_bytes() for name, site in sites.items()}
    frame = pl.read_csv(sites["shop"].table)
    frame.head(150).write_csv(sites["shop"].table)
    run(sites, settings())
    assert all((site.folder / "alignment.safetensors").read_bytes() != kept[name] for name, site in sites.items())


def test_another_set_of_parties_with_columns_is_aligned_again(tmp_path):
    """Presence is stored by a party's position among those with columns; for other parties it would be wrong."""
    sites = world(tmp_path)
    run(sites, settings())
    lent = settings().model_dump(mode="json")
    lent["parties"]["bank"]["columns"] = False
    assert run(sites, Config.of(lent))["bank"]["evaluation"]["overall"]["rows"] > 0
    kept = StoredAlignment.read(sites["bank"].folder / "alignment.safetensors")
    assert kept.share.observed.shape[1] == len(kept.parties["blocks"]) == 2


def test_a_resumed_run_ends_with_the_same_weights(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    whole = weights(sites)
    for site in sites.values():  # as after a crash in the fifth epoch: the last checkpoint is that of the fourth
        (site.folder / "checkpoints" / "00-000006.safetensors").unlink()
        (site.folder / "parties" / site.party / "model.safetensors").unlink()
    run(sites, settings(), resume=True)
    assert weights(sites) == whole


def test_resume_is_refused_with_other_settings(tmp_path):
    """Another seed splits rows differently, so rows of the training would be scored."""
    sites = world(tmp_path)
    run(sites, settings(epochs=4))
    before = (sites["bank"].folder / "record.json").read_bytes()
    with pytest.raises(ResumeError, match=r"cannot resume, other settings: setting train.seed: was 0, is 7"):
        run(sites, settings(epochs=4, seed=7), resume=True)
    assert (sites["bank"].folder / "record.json").read_bytes() == before


def test_resume_is_refused_if_a_table_has_changed(tmp_path):
    sites = world(tmp_path)
    run(sites, settings())
    frame = pl.read_csv(sites["clinic"].table)
    frame.head(100).write_csv(sites["clinic"].table)
    with pytest.raises(ResumeError, match=r"'clinic' has another alignment than the run"):
        run(sites, settings(), resume=True)


def test_resume_after_a_kill_during_the_alignment_says_how_to_continue(tmp_path):
    sites = world(tmp_path)
    run(sites, settings(epochs=1))
    for site in sites.values():
        (site.folder / "alignment.safetensors").unlink()
    says = "cannot resume: the alignment is not complete; start without --resume .* an interrupted alignment continues"
    with pytest.raises(ResumeError, match=says):
        run(sites, settings(epochs=1), resume=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"table": None}, "party 'shop': its own settings name no table"),
        ({"parties": ("bank", "shop")}, "the settings name party 'clinic', the federation has"),
    ],
)
def test_a_site_without_a_table_or_with_other_parties_is_refused(tmp_path, change, said):
    sites = world(tmp_path)
    sites["shop"] = replace(sites["shop"], **change)
    with pytest.raises(ConfigError, match=said):
        run(sites, settings())


@dataclass(frozen=True)
class RestrictedSite(Site):
    id: str | None = None
    columns: tuple[str, ...] | None = None


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ({"id": "id", "columns": ("spent", "visits")}, None),
        (
            {"columns": ("spent",)},
            r"'shop': the job reads 'visits', and its own settings .* allow columns = \['spent'\]",
        ),
        ({"columns": ()}, "the job reads 'spent', 'visits'"),
        ({"id": "card"}, r"'shop': the job aligns by column 'id', but the party's own settings .* id = 'card'"),
    ],
)
def test_a_job_may_read_only_columns_that_the_site_allows(tmp_path, says, refused):
    sites = world(tmp_path)
    sites["shop"] = RestrictedSite(**vars(sites["shop"]), **says)
    with contextlib.nullcontext() if refused is None else pytest.raises(ConfigError, match=refused):
        run(sites, settings(epochs=1))


def test_the_label_must_be_among_the_allowed_columns(tmp_path):
    sites = world(tmp_path)
    sites["bank"] = RestrictedSite(**vars(sites["bank"]), columns=("income",))
    with pytest.raises(ConfigError, match="party 'bank': the job reads 'y'"):
        run(sites, settings(epochs=1))


@pytest.mark.filterwarnings("ignore:the labels of party 'shop' are not used")
@pytest.mark.parametrize("columns", [True, False])
def test_a_site_reads_its_table_as_training_in_one_process_does(tmp_path, columns):
    """The columns that are read determine the present rows, and so N and the split."""
    sites = world(tmp_path)
    own = {"drop": ["visits"], "types": {"spent": "categorical"}} if columns else {"label": "kind"}
    frame = pl.read_csv(sites["shop"].table).with_columns(kind=pl.int_range(pl.len()) % 2)
    rare = pl.when(pl.int_range(pl.len()) < 20).then("kind")  # most rows have cells but no label
    frame.with_columns(pl.lit("some words").alias("said") if columns else rare).write_csv(sites["shop"].table)
    whole = settings(epochs=1).model_dump(exclude_none=True)
    config = Config.of(whole | {"parties": {"bank": {}, "shop": own | {"columns": columns}, "clinic": {}}})
    one = Federation.from_config(config, {name: site.table for name, site in sites.items()})
    for name, site in sites.items():
        at_home = SiteParty.of(site, config).table
        assert at_home.fingerprint == one.tables[name].fingerprint, name
        assert at_home.kinds == one.tables[name].kinds, name
    run(sites, config)
    assert len(StoredAlignment.read(sites["bank"].folder / "alignment.safetensors").share.position) == one.alignment.n


def test_a_party_with_labels_only_may_allow_just_its_label_column(tmp_path):
    sites = world(tmp_path)
    frame = pl.read_csv(sites["shop"].table)
    frame.with_columns(y2=pl.lit("a"), day=pl.lit("2024-01-02")).write_csv(sites["shop"].table)
    sites["shop"] = RestrictedSite(**vars(sites["shop"]), columns=("y2",))
    whole = settings().model_dump(exclude_none=True)
    config = Config.of(whole | {"parties": {"bank": {}, "shop": {"columns": False, "label": "y2"}, "clinic": {}}})
    assert SiteParty.of(sites["shop"], config).table.kinds == {}


@dataclass(frozen=True)
class ListingSite(Site):
    encoders: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    consents: tuple[str, ...] = ()


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return a function that writes a user's own module, which leaves a file as a sign when it is imported."""
    sign = tmp_path / "it ran"

    def write(name, code):
        (tmp_path / f"{name}.py").write_text(f"from pathlib import Path\n\nPath({str(sign)!r}).touch()\n\n\n{code}")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return sign

    return write


@pytest.fixture
def job_with_code(write_module):
    """Return settings that name code for the shop, and the file that shows whether it ran."""
    code = "from torch import nn\n\n\ndef make(inputs, outputs) -> nn.Module:\n    return nn.Linear(inputs, outputs)\n"
    values = settings(epochs=1).model_dump(exclude_none=True)
    values["parties"]["shop"]["encoder"] = {"factory": "nets_of_ours:make"}
    return Config.of(values), write_module("nets_of_ours", code)


@pytest.fixture
def job_with_a_method(write_module):
    """Settings that name a user-defined method, and where it leaves a sign that it ran."""
    code = "from anyparty.methods.split.plug import Plug\n\n\nclass Mine(Plug):\n    pass\n"
    values = settings(epochs=1).model_dump(exclude_none=True)
    values["method"] = {"factory": "rules_of_ours:Mine", "embedding": 4}
    return Config.of(values), write_module("rules_of_ours", code)


REFUSED = (
    r"party 'shop': the job names an encoder that is user-defined code, 'nets_of_ours:make', and the party's own "
    r"settings do not allow it; if this code may run here, write encoders = \[\"nets_of_ours:make\"\] into local"
)


@pytest.mark.parametrize("listed", [None, (), ("nets_of_ours:other",), ("bank.nets_of_ours:make",)])
def test_encoder_code_that_a_party_does_not_list_is_not_imported(tmp_path, job_with_code, listed):
    sites, (config, sign) = world(tmp_path), job_with_code
    if listed is not None:
        sites["shop"] = ListingSite(**vars(sites["shop"]), encoders=listed)
    with pytest.raises(ConfigError, match=REFUSED):
        run(sites, config)
    assert not sign.exists()


def test_listed_encoder_code_is_used_in_training_and_prediction(tmp_path, job_with_code):
    sites, (config, sign) = world(tmp_path), job_with_code
    sites["shop"] = ListingSite(**vars(sites["shop"]), encoders=("nets_of_ours:make",))
    run(sites, config)
    assert sign.exists()
    kept, _, _ = load_party(sites["shop"], config)
    assert {type(each) for each in kept.state.modules["encoder"].modules()} == {torch.nn.Linear}
    with pytest.raises(ConfigError, match=REFUSED):
        load_party(replace(sites["shop"], encoders=()), config)
    parts = {name: partial(predict_at_site, site, config) for name, site in sites.items()}
    assert memory.play(parts)["bank"]["answered"] == 192
    sites["shop"] = replace(sites["shop"], encoders=())
    with pytest.raises(ConfigError, match=REFUSED):
        memory.play(parts | {"shop": partial(predict_at_site, sites["shop"], config)})


def test_the_label_column_is_never_used_as_a_feature(tmp_path):
    sites = world(tmp_path)
    frame = pl.read_csv(sites["shop"].table)
    frame.with_columns(y=(pl.col("spent") > 0).cast(int), y2=pl.lit("a")).write_csv(sites["shop"].table)
    whole = settings().model_dump(exclude_none=True)
    for own, said in (
        ({}, r"party 'shop' also holds the label column 'y' \(table\.csv\), which would be used as a feature"),
        ({"label": "y2"}, r"party 'shop' also holds the label column 'y' .* a feature beside its own label 'y2'"),
    ):
        config = Config.of(whole | {"parties": {"bank": {}, "shop": own, "clinic": {}}})
        with pytest.raises(TableError, match=said):
            SiteParty.of(sites["shop"], config)
    for own in ({"label": "y"}, {"drop": ("y",)}):
        config = Config.of(whole | {"parties": {"bank": {}, "shop": own, "clinic": {}}})
        assert "y" not in SiteParty.of(sites["shop"], config).table.kinds


def test_a_label_setting_without_effect_is_refused(tmp_path):
    sites = world(tmp_path)
    config = Config.of(settings().model_dump(exclude_none=True) | {"parties": {"bank": {"label": "income"}}})
    for name in NAMES:
        with pytest.raises(ConfigError, match="'y' has no effect: the active party 'bank' has its own label, 'income'"):
            SiteParty.of(sites[name], config)


@pytest.mark.parametrize("kind", ["active", "all"])
def test_a_passive_party_gets_the_same_setup_with_every_kind_of_rows(tmp_path, kind):
    sites, seen = world(tmp_path), {}

    class MessageRecorder(ChannelWrapper):
        async def send(self, to, tag, tensors):
            if tag in {"setup", "plan"}:
                seen.setdefault((rows, to, tag), []).append({name: tensor.clone() for name, tensor in tensors.items()})
            await super().send(to, tag, tensors)

    for rows in ("any", kind):
        run(sites, settings(epochs=1, rows=rows), wrap=MessageRecorder)
    for name in ("shop", "clinic"):
        before, after = (seen[rows, name, "setup"][0] for rows in ("any", kind))
        assert before.keys() == after.keys()
        assert all(torch.equal(before[each], after[each]) for each in before)
        every, some = (seen[rows, name, "plan"][0]["train"] for rows in ("any", kind))
        assert set(some.tolist()) <= set(every.tolist())
    record = json.loads((sites["bank"].folder / "record.json").read_text())
    counts = record["overlap"]["kinds"]
    stored = StoredAlignment.read(sites["bank"].folder / "alignment.safetensors").share
    assert counts["active"][0] == len(pl.read_csv(sites["bank"].table)) == (stored.position >= 0).sum()
    assert counts["all"][0] == stored.observed.all(dim=1).sum() == record["overlap"]["by_all"]
    trained = stored.position >= 0 if kind == "active" else stored.observed.all(dim=1).numpy()
    assert trained[some.numpy()].all()
    assert (len(some) < len(every)) is (kind == "all")  # LASER trains on labelled rows, which the bank holds
    assert json.loads((sites["shop"].folder / "record.json").read_text()).get("overlap") is None


def test_no_message_holds_a_feature_a_label_or_an_id(tmp_path):
    sites, seen = world(tmp_path), []

    class MessageRecorder(ChannelWrapper):
        async def send(self, to, tag, tensors):
            seen.append((self.me, to, tag, {name: tensor.clone() for name, tensor in tensors.items()}))
            await super().send(to, tag, tensors)

    run(sites, settings(epochs=2), wrap=MessageRecorder)
    assert {tag for _, _, tag, _ in seen} >= {"embedding", "gradient", "setup", "plan", "align-tokens"}
    frames = {name: pl.read_csv(site.table) for name, site in sites.items()}
    for sender, _, tag, tensors in seen:
        own = frames[sender]
        values = own.select(pl.col(pl.Float64)).to_numpy().ravel()
        scaled = (values - values.mean()) / values.std()
        for tensor in tensors.values():
            raw = tensor.contiguous().numpy().tobytes()
            assert not any(text.encode() in raw for text in own["id"].head(20)), tag
            for kind in (np.float32, np.float64):
                assert not any(value.astype(kind).tobytes() in raw for value in values[:20]), tag
            if tensor.dtype == torch.float32:
                assert not np.isin(scaled[:20].astype(np.float32), tensor.numpy()).any(), tag


@pytest.mark.parametrize("listed", [None, (), ("rules_of_ours:Other",)])
def test_a_method_that_a_party_does_not_list_is_not_imported(tmp_path, job_with_a_method, listed):
    config, sign = job_with_a_method
    (site,) = (site for name, site in world(tmp_path).items() if name == "shop")
    if listed is not None:
        site = ListingSite(**vars(site), methods=listed)
    said = r"party 'shop': the job names a method that is user-defined code.*methods = \[\"rules_of_ours:Mine\"\]"
    with pytest.raises(ConfigError, match=said):
        SiteParty.of(site, config)
    assert not sign.exists()


def test_a_method_that_all_parties_list_trains_predicts_and_serves(tmp_path, job_with_a_method):
    config, sign = job_with_a_method
    listed = ("rules_of_ours:Mine",)
    sites = {name: ListingSite(**vars(site), methods=listed) for name, site in world(tmp_path).items()}
    run(sites, config)
    assert sign.exists()
    about = ModelSummary.load(sites["shop"].folder / "model.json")
    assert (about.method, about.own["rule"]["class"]) == (None, "Mine")
    told = memory.play({name: partial(predict_at_site, site, config) for name, site in sites.items()})
    assert told["bank"]["answered"] == told["bank"]["rows"] > 0
    kept, _, _ = load_party(sites["bank"], config)
    assert type(kept.method.rule).__name__ == "Mine"
    with pytest.raises(ConfigError, match=r"give the settings that it was trained with, with their factory \(--config"):
        load_party(sites["bank"], None)


@pytest.mark.parametrize("consents", [(), ("score",)])
def test_bins_are_sent_only_by_a_party_that_consents(tmp_path, consents):
    config = Config.of(settings().model_dump(exclude_none=True) | {"method": {"name": "boosting", "exchange": "bins"}})
    sites = {name: ListingSite(**vars(site), consents=("bins",)) for name, site in world(tmp_path).items()}
    run(sites, config)
    told = memory.play({name: partial(predict_at_site, site, config) for name, site in sites.items()})
    assert told["bank"]["answered"] == told["bank"]["rows"] > 0
    shop, said = replace(sites["shop"], consents=consents), r"party 'shop'.*'bins' shows cells.*consents = \[\"bins\"\]"
    with pytest.raises(ConfigError, match=said):
        SiteParty.of(shop, config)
    with pytest.raises(ConfigError, match=said):
        load_party(shop, config)
    SiteParty.of(replace(sites["bank"], consents=()), config)  # the active party sends none


def test_a_party_reads_its_table_by_its_own_settings(tmp_path):
    """The party's settings replace those of the job, in training and prediction."""
    sites = world(tmp_path)
    run(sites, settings(epochs=2))
    clean = weights(sites)
    frame = pl.read_csv(sites["shop"].table)
    text = frame.with_columns(pl.col(pl.Float64).cast(pl.String).str.replace(".", ",", literal=True))
    text.write_csv(sites["shop"].table, separator=";")
    kit = tmp_path / "kit"
    (kit / "local").mkdir(parents=True)
    own = {"party": "shop", "active": "bank", "parties": list(NAMES), "table": str(sites["shop"].table),
           "folder": str(sites["shop"].folder), "separator": ";", "decimal": ",",
           "missing": {"visits": [-999]}}  # fmt: skip
    (kit / "local" / "anyparty.toml").write_text(tomli_w.dumps(own))
    sites["shop"] = SiteConfig.read(kit)
    lent = settings(epochs=2).model_dump(mode="json", exclude_none=True)
    lent["parties"]["shop"] |= {"separator": "|", "missing": {"none": ["x"]}}
    run(sites, Config.of(lent))
    assert weights(sites) == clean
    used = SiteParty.of(sites["shop"], Config.of(lent)).config.parties["shop"]
    assert (used.separator, used.decimal, used.missing) == (";", ",", {"visits": ("-999",)})
    told = memory.play({name: partial(predict_at_site, site, Config.of(lent)) for name, site in sites.items()})
    assert told["bank"] is not None


def test_an_invalid_setting_of_a_site_is_reported(tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "anyparty.toml").write_text(
        'party = "a"\nactive = "a"\nparties = ["a", "b"]\nseparator = ";;"\n'
    )
    with pytest.raises(ConfigError, match=r"anyparty.toml.*separator = ';;': expected one ASCII character"):
        SiteConfig.read(tmp_path)
