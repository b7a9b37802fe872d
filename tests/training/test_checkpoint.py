"""A party's checkpoints are restored bit for bit, or rejected with a clear error."""

import json
import pickle
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from anyparty.errors import AnypartyWarning, ModelError, Stopped
from anyparty.methods.method import State
from anyparty.methods.method_registry import method
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import KEEP, Checkpoints, RunPosition, load_module, read, tensors_of, write
from anyparty.training.party_run import StaticMembership
from tests import worlds
from tests.worlds import same_bits, world

OPTIMIZERS = {
    "sgd": Optimizer(name="sgd", lr=0.1),
    "momentum": Optimizer(name="sgd", lr=0.1, momentum=0.9),
    "adam": Optimizer(name="adam", lr=0.1),
    "adamw": Optimizer(name="adamw", lr=0.1, weight_decay=0.1),
}
PROGRESS = RunPosition(stage=0, epoch=4, best=0.25, best_epoch=2, history=[{"epoch": 1, "loss": 0.5}, {"epoch": 2}])


def fresh(optimizer="adam", steps=0, seed=0):
    """Return a party's networks after some steps; one has buffers, and one has frozen parameters."""
    torch.manual_seed(seed)
    encoder, heads = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2)
    heads.bias.requires_grad_(False)
    state = State(world().seat("a"), {"encoder": encoder, "heads": heads})
    for name, module in state.modules.items():
        state.optimizers[name] = OPTIMIZERS[optimizer].build([p for p in module.parameters() if p.requires_grad])
    for _ in range(steps):
        step(state)
    return state


def step(state):
    x = torch.linspace(-1, 1, 15).view(5, 3)
    for optimizer in state.optimizers.values():
        optimizer.zero_grad()
    state.modules["heads"](state.modules["encoder"](x)).square().sum().backward()
    for optimizer in state.optimizers.values():
        optimizer.step()


def weights(state):
    return {f"{m}/{name}": t.clone() for m, module in state.modules.items() for name, t in module.state_dict().items()}


class TestSaveAndLoad:
    @pytest.mark.parametrize("name", sorted(OPTIMIZERS))
    def test_training_continues_from_a_checkpoint_bit_for_bit(self, name, tmp_path):
        """Networks, buffers, optimizer moments and step counts are restored: the next steps have the same bits."""
        state, kept = fresh(name, steps=3), Checkpoints(tmp_path)
        kept.save(state, PROGRESS, {})
        other = fresh(name, steps=5, seed=9)
        kept.load(other, (0, 4))
        for _ in range(3):
            step(state)
            step(other)
        assert same_bits(weights(state), weights(other))

    def test_a_checkpoint_before_the_first_step_is_restored(self, tmp_path):
        kept = Checkpoints(tmp_path)
        kept.save(fresh(), RunPosition(), {})
        progress, best = kept.load(fresh(seed=3), (0, 0))
        assert (progress, best) == (RunPosition(), {})

    def test_the_run_position_and_the_best_networks_are_restored(self, tmp_path):
        state, kept = fresh(steps=2), Checkpoints(tmp_path)
        best = {name: tensors_of(module) for name, module in state.modules.items()}
        step(state)
        kept.save(state, PROGRESS, best)
        progress, came = kept.load(fresh(), (0, 4))
        assert progress == PROGRESS
        assert came.keys() == best.keys()
        assert all(same_bits(came[name], best[name]) for name in best)

    def test_infinity_and_nan_in_the_history_are_restored(self, tmp_path):
        kept = Checkpoints(tmp_path)
        kept.save(fresh(), RunPosition(epoch=4, history=[{"loss": float("inf"), "metric": float("nan")}]), {})
        (record,) = kept.load(fresh(), (0, 4))[0].history
        assert record["loss"] == float("inf")
        assert record["metric"] != record["metric"]

    def test_nothing_is_pickled(self, tmp_path):
        kept = Checkpoints(tmp_path)
        kept.save(fresh(steps=1), PROGRESS, {})
        (path,) = kept.files()
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError)):
            pickle.loads(path.read_bytes())  # noqa: S301 - the test checks that it fails
        with safe_open(path, framework="pt") as file:
            assert json.loads(file.metadata()["anyparty"])["epoch"] == 4


class TestFolder:
    def save(self, folder, *moments):
        kept = Checkpoints(folder)
        for stage, epoch in moments:
            kept.save(fresh(), RunPosition(stage=stage, epoch=epoch), {})
        return kept

    def test_only_the_last_two_checkpoints_are_kept(self, tmp_path):
        kept = self.save(tmp_path, (0, 1), (0, 2), (0, 10), (0, 11))
        assert kept.stage_epochs() == [(0, 10), (0, 11)]
        assert len(list(tmp_path.iterdir())) == KEEP == 2

    def test_checkpoints_of_epochs_with_all_parties_are_kept_while_one_is_away(self, tmp_path):
        kept = self.save(tmp_path, (0, 1), (0, 2), (0, 3))
        for epoch in (4, 5, 6):
            kept.save(fresh(), RunPosition(epoch=epoch), {}, whole=False)
        assert kept.stage_epochs() == [(0, 2), (0, 3), (0, 5), (0, 6)]
        again = Checkpoints(tmp_path)  # another process
        again.save(fresh(), RunPosition(epoch=7), {}, whole=False)
        assert again.stage_epochs() == [(0, 2), (0, 3), (0, 6), (0, 7)]
        assert again.load(fresh(), (0, 7))[0].epoch == 7
        for epoch in (8, 9):
            again.save(fresh(), RunPosition(epoch=epoch), {})
        assert again.stage_epochs() == [(0, 8), (0, 9)]

    def test_later_stages_come_last(self, tmp_path):
        assert self.save(tmp_path, (0, 200), (1, 3), (1, 100)).stage_epochs() == [(1, 3), (1, 100)]

    def test_a_missing_folder_has_no_checkpoints(self, tmp_path):
        assert Checkpoints(tmp_path / "none").stage_epochs() == []

    def test_other_files_in_the_folder_are_ignored_and_kept(self, tmp_path):
        kept = self.save(tmp_path, (0, 1))
        for name in ("notes.safetensors", "00-000009.part", "readme.txt", "model-best.safetensors"):
            (tmp_path / name).write_bytes(b"")
        assert kept.stage_epochs() == [(0, 1)]
        self.save(tmp_path, (0, 2), (0, 3))
        assert kept.stage_epochs() == [(0, 2), (0, 3)]
        assert (tmp_path / "notes.safetensors").exists()

    def test_an_interrupted_write_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "x.safetensors"
        write(path, {"w": torch.ones(2)}, {"n": 1})

        def cut_off(tensors, beside, metadata):
            beside.write_bytes(b"half")
            raise KeyboardInterrupt

        monkeypatch.setattr("anyparty.training.checkpoint.save_file", cut_off)
        with pytest.raises(KeyboardInterrupt):
            write(path, {"w": torch.zeros(2)}, {"n": 2})
        tensors, about = read(path)
        assert tensors["w"].tolist() == [1, 1]
        assert about == {"n": 1}


def test_loading_an_earlier_checkpoint_deletes_later_ones(tmp_path):
    kept = Checkpoints(tmp_path)
    for epoch in (4, 5):
        kept.save(fresh(steps=1), replace(PROGRESS, epoch=epoch), {})
    kept.load(fresh(), (PROGRESS.stage, 4))
    assert [epoch for _, epoch in kept.stage_epochs()] == [4]


class EndingMembership(StaticMembership):
    """Membership in which a party has left after some epochs, or in which this party's own part was ended."""

    def __init__(self, after, why, own=""):
        self.after, self.why, self.own, self.asked = after, why, own, 0

    def gone(self):
        self.asked += 1
        return {"b": self.why} if self.why and self.asked > self.after else {}

    def stop_reason(self):
        return self.own if self.asked > self.after else ""


@pytest.mark.parametrize(
    ("why", "own", "said"),
    [("it left: the job was ended", "", "the job was ended"), ("", "its site was stopped", "its site was stopped")],
)
def test_an_epoch_in_which_the_run_was_ended_has_no_checkpoint(tmp_path, why, own, said):
    """The active party learns of the end last; a checkpoint of it alone would replace those that all parties have."""
    settings = {"epochs": 6, "checkpoint_every": 1, "membership": EndingMembership(3, why, own)}
    with pytest.raises(Stopped, match=said):
        worlds.train(method("laser", embedding=4), world(K=2), folder=tmp_path, **settings)
    assert [epoch for _, epoch in Checkpoints(tmp_path / "a").stage_epochs()] == [2, 3]


def test_training_continues_after_a_party_is_lost(tmp_path):
    settings = {"epochs": 6, "checkpoint_every": 1, "membership": EndingMembership(3, "it hangs")}
    worlds.train(method("laser", embedding=4), world(K=2), folder=tmp_path, **settings)
    assert [epoch for _, epoch in Checkpoints(tmp_path / "a").stage_epochs()] == [2, 3, 5, 6]


class TestAfterAPowerFailure:
    def test_training_resumes_from_the_checkpoint_before_a_damaged_one(self, tmp_path):
        kept = Checkpoints(tmp_path)
        for epoch in (3, 4):
            kept.save(fresh(steps=1), replace(PROGRESS, epoch=epoch), {})
        last = tmp_path / "00-000004.safetensors"
        last.write_bytes(last.read_bytes()[:-1])
        with pytest.warns(AnypartyWarning, match=r"power failure: '00-000004\.safetensors'; resuming from 00-000003"):
            assert kept.begin("", resume=True) == [(0, 3)]
        kept.save(fresh(steps=1), replace(PROGRESS, epoch=4), {})
        assert kept.begin("", resume=True) == [(0, 3), (0, 4)]

    def test_the_only_checkpoint_is_reported_if_it_is_damaged(self, tmp_path):
        Checkpoints(tmp_path).save(fresh(steps=1), PROGRESS, {})
        path = tmp_path / "00-000004.safetensors"
        path.write_bytes(b"")
        (moment,) = Checkpoints(tmp_path).begin("", resume=True)
        with pytest.raises(ModelError, match=r"00-000004\.safetensors: this is not a complete file"):
            Checkpoints(tmp_path).load(fresh(), moment)


class Stops(Callback):
    """Interrupts a run at the end of an epoch, before the active party has saved it."""

    def __init__(self, after):
        self.after = after

    def on_epoch_end(self, record):
        if record["epoch"] == self.after:
            raise KeyboardInterrupt


def test_a_rejoined_party_averages_only_the_epochs_since_it_rejoined(tmp_path):
    """The last four of sixteen epochs are averaged; b rejoins before the last two, with its first networks."""
    run = partial(worlds.train, method("laser", embedding=4), world(K=2), folder=tmp_path,
                  epochs=16, checkpoint_every=1, keep="average")  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run(watch=Stops(2))
    first = (tmp_path / "b" / "00-000001.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        run(watch=Stops(15), resume=True)
    for path in (tmp_path / "b").glob("*.safetensors"):
        path.unlink()
    (tmp_path / "b" / "00-000001.safetensors").write_bytes(first)
    with pytest.warns(AnypartyWarning, match="no epoch has a checkpoint at all parties"):
        trained = run(resume=True)
    (one, _), (two, about) = (read(tmp_path / "b" / f"00-0000{epoch}.safetensors") for epoch in (15, 16))
    for name, mean in weights(trained["b"].state).items():
        assert not torch.allclose(one[f"module/{name}"], two[f"module/{name}"], atol=1e-4)
        assert torch.allclose(mean, (one[f"module/{name}"] + two[f"module/{name}"]) / 2, atol=1e-6)
    _, of_a = read(tmp_path / "a" / "00-000016.safetensors")
    assert (of_a["averaged"], about["averaged"]) == (4, 2)


class TestRefusals:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "00-000004.safetensors"
        Checkpoints(tmp_path).save(fresh(steps=1), PROGRESS, {})
        assert path.exists()
        return path

    def load(self, path, state=None):
        return Checkpoints(path.parent).load(state or fresh(), (0, 4))

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
    def test_a_truncated_file_is_refused(self, path, share):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ModelError, match=r"00-000004.safetensors: this is not a complete file of anyparty"):
            self.load(path)

    def test_trailing_bytes_are_refused(self, path):
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(ModelError, match="not a complete file"):
            self.load(path)

    def test_files_of_other_formats_are_refused(self, path):
        for foreign in (pickle.dumps({"epoch": 4}), b"PK\x03\x04 a zip, as torch.save writes", b"{}", b"\xff" * 100):
            path.write_bytes(foreign)
            with pytest.raises(ModelError, match="not a complete file of anyparty"):
                self.load(path)

    def test_safetensors_files_with_foreign_metadata_are_refused(self, path):
        for metadata in (
            None,
            {"format": "pt"},
            {"anyparty": "not json"},
            {"anyparty": "[1]"},
            {"anyparty": '{"a": 1}'},
        ):
            save_file({"w": torch.ones(2)}, path, metadata=metadata)
            with pytest.raises(ModelError, match=r"00-000004.safetensors"):
                self.load(path)

    def test_a_missing_checkpoint_is_reported(self, path):
        with pytest.raises(ModelError, match=r"00-000005.safetensors: no such file"):
            Checkpoints(path.parent).load(fresh(), (0, 5))

    def test_a_checkpoint_of_other_networks_is_refused(self, path):
        state = fresh()
        state.modules["heads"] = nn.Linear(7, 2)
        said = r"parameter heads/weight was saved with shape 2 × 4, but has shape 2 × 7 here; give[^\n]*$"
        with pytest.raises(ModelError, match=said):
            self.load(path, state)

    def test_a_checkpoint_with_a_missing_tensor_is_refused(self, path):
        tensors, about = read(path)
        del tensors["module/heads/weight"]
        write(path, tensors, about)
        with pytest.raises(ModelError, match=r"do not fit.*: parameter heads/weight was not saved; give"):
            self.load(path)

    @pytest.mark.parametrize("break_it", ["momentum of another shape", "another optimizer", "a key of nonsense"])
    def test_a_checkpoint_of_another_optimizer_is_refused(self, path, break_it):
        tensors, about = read(path)
        if break_it == "momentum of another shape":
            tensors["optimizer/heads/0/exp_avg"] = torch.zeros(9)
        elif break_it == "another optimizer":
            tensors = {k: t for k, t in tensors.items() if not k.startswith("optimizer/heads/0/exp_avg")}
        else:
            tensors["optimizer/heads/first/exp_avg"] = torch.zeros(9)
        write(path, tensors, about)
        with pytest.raises(ModelError, match=r"00-000004.safetensors.*optimizer"):
            self.load(path)

    def test_loading_a_module_reports_missing_and_extra_parameters(self):
        with pytest.raises(ModelError, match=r"shop.safetensors: its weights do not fit.* bias was not saved"):
            load_module(nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, "shop.safetensors")
        kept = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "more": torch.zeros(())}
        with pytest.raises(ModelError, match=r"parameter head/more was saved, but the network does not have it; give"):
            load_module(nn.Linear(2, 2), kept, "shop.safetensors", "head")
