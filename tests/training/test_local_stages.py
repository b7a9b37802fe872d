"""Stages without messages: every party by itself, the active party alone, and single exchanges."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import nn

from anyparty.core.predictions import Predictions
from anyparty.core.types import Capabilities, MessageSpec, TensorSpec
from anyparty.methods.method import Stage, State
from anyparty.training.callbacks import Callback
from anyparty.training.loop import last_common
from tests import worlds
from tests.worlds import Table, world

OF = world(K=2, N=30, kind="regression", observed=torch.ones(30, 2, dtype=torch.bool))
VALIDATION = torch.arange(0, 30, 3)
TRAINING = torch.ones(30, dtype=torch.bool).index_fill(0, VALIDATION, False)
WORD = MessageSpec(tag="word", frm="passive", to="active", holds="a number", learns="that number")


class Counter(nn.Module):
    """A network that counts its training steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Every party counts its epochs, with given losses; then b sends its count to a, and a continues alone."""

    losses: dict[str, list[float | None]]
    seen: list[tuple[str, str, torch.Tensor]] = field(default_factory=list)

    @property
    def can(self):
        return Capabilities(title="Alone", paper="none", trains_on="rows", predicts_for="any row", needs="any",
                            messages=(WORD,))  # fmt: skip

    def begin(self, seat, seeds):
        return State(seat, {"counter": Counter()})

    def stages(self, seat):
        every = {"rows": lambda rows: rows.labeled}
        return (
            Stage(name="alone", step=self.step, loss=self.loss, batch_size=100, **every),
            Stage(name="tell", step=self.tell, epochs=0, with_validation=True, validates=False, **every),
            Stage(name="lead", step=self.step, parties="active", batch_size=100, **every),
        )

    async def step(self, net, state, rows, batch):
        self.seen.append((state.seat.me, batch.step_id[0], batch.rows))
        state.modules["counter"].count += 1
        return 1.0

    def loss(self, state, rows, batch):
        assert not state.modules["counter"].training
        assert torch.equal(batch.rows, VALIDATION)
        return self.losses[state.seat.me][int(state.modules["counter"].count) - 1]

    async def tell(self, net, state, rows, batch):
        self.seen.append((state.seat.me, "tell", batch.rows))
        if state.seat.me == "b":
            await net.send("a", "word", {"n": state.modules["counter"].count})
        else:
            state.kept["theirs"] = (await net.recv("b", "word", {"n": TensorSpec(())}))["n"]

    async def predict(self, net, state, rows, batch, asked):
        assert state.seat.me == "a"
        off = 10 - state.modules["counter"].count
        scores = (rows.y[batch.rows] * 2 + 5 + off).unsqueeze(1)
        return Predictions(task=state.seat.task, blocks=("a", "b"), scores=scores, asked=torch.ones(2).bool(),
                           took_part=rows.observed[batch.rows])  # fmt: skip


def train(losses, **settings):
    made = Alone(losses=losses)
    chosen = {"validation": VALIDATION, "training": TRAINING, "epochs": 4, "keep": "best", "patience": 2}
    return made, worlds.train(made, OF, **chosen | settings)


def counts(trained):
    return {name: int(party.state.modules["counter"].count) for name, party in trained.items()}


BOTH = {"a": [3.0, 2.0, 5.0, 5.0], "b": [5.0, 4.0, 3.0, 2.0]}


class TestLocalStage:
    def test_a_party_stops_by_its_own_loss_and_keeps_its_own_best_weights(self):
        """a's loss is lowest after the second epoch, so it stops after the fourth; b's falls until the end."""
        made, trained = train(BOTH | {"a": [3.0, 2.0, 5.0, 5.0, 0.0], "b": [5.0, 4.0, 3.0, 2.0, 1.0]}, epochs=5)
        assert sum(who == "a" for who, stage, _ in made.seen if stage == "alone") == 4
        assert sum(who == "b" for who, stage, _ in made.seen if stage == "alone") == 5
        assert counts(trained)["b"] == 5
        assert int(trained["a"].state.kept["theirs"]) == 5
        own = [r["validation"]["loss"] for r in trained["a"].history if r["stage"] == "alone"]
        assert own == [3, 2, 5, 5]
        assert counts(trained)["a"] == 2 + 5  # the weights of the second epoch, then five of the lead's own epochs

    def test_a_party_without_validation_rows_trains_to_the_end(self):
        _, trained = train(BOTH | {"b": [None] * 4})
        assert counts(trained)["b"] == 4

    def test_a_local_stage_sends_no_messages(self):
        at = Table()
        train(BOTH, at=at)
        assert sorted((sender, tag) for sender, _, tag, _ in at.notes) == [
            ("a", "plan"), ("a", "plan"), ("a", "start"), ("b", "hello"), ("b", "word"),
        ]  # fmt: skip


class TestSingleExchange:
    def test_an_exchange_is_a_single_step_over_all_rows(self):
        made, trained = train(BOTH)
        for name in "ab":
            (rows,) = [rows for who, stage, rows in made.seen if (who, stage) == (name, "tell")]
            assert torch.equal(rows, torch.arange(30))  # including validation rows
        (record,) = [record for record in trained["a"].history if record["stage"] == "tell"]
        assert record["epoch"] == 1

    def test_other_stages_do_not_train_on_validation_rows(self):
        made, _ = train(BOTH)
        rows = torch.cat([rows for _, stage, rows in made.seen if stage != "tell"])
        assert not torch.isin(rows, VALIDATION).any()


class TestActivePartyStage:
    def test_only_the_active_party_trains_and_it_stops_by_the_metric(self):
        """Answers are off by 10 minus the count, so every epoch is better."""
        made, trained = train(BOTH)
        assert {who for who, stage, _ in made.seen if stage == "lead"} == {"a"}
        errors = [record["validation"]["rmse"] for record in trained["a"].history if record["stage"] == "lead"]
        assert errors == pytest.approx([7, 6, 5, 4], rel=1e-4)
        assert counts(trained)["a"] == 6


@dataclass
class Stops(Callback):
    after: tuple[str, int]

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        if (record["stage"], record["epoch"]) == self.after:
            raise KeyboardInterrupt


class TestResuming:
    """The lead is stopped; the other party may be at another epoch."""

    @pytest.mark.parametrize("after", [("alone", 1), ("alone", 3), ("tell", 1), ("lead", 1), ("lead", 4)])
    def test_a_run_resumes_from_any_stage(self, after, tmp_path):
        _, whole = train(BOTH)
        with pytest.raises(KeyboardInterrupt):
            train(BOTH, folder=tmp_path, checkpoint_every=1, watch=Stops(after))
        at = Table()
        _, resumed = train(BOTH, folder=tmp_path, checkpoint_every=1, resume=True, at=at)
        assert counts(resumed) == counts(whole)
        strip = [[{**record, "seconds": 0} for record in each["a"].history] for each in (whole, resumed)]
        assert strip[0] == strip[1]
        assert [tag for _, _, tag, _ in at.notes].count("word") == (after[0] != "lead")

    def test_a_party_that_is_an_epoch_behind_resumes_at_its_own_epoch(self, tmp_path):
        """Each party resumes at its own epoch: a from its third, b, whose third is lost, from its second."""
        with pytest.raises(KeyboardInterrupt):
            train(BOTH, folder=tmp_path, checkpoint_every=1, watch=Stops(("alone", 4)))
        assert (tmp_path / "a" / "00-000003.safetensors").exists()
        (tmp_path / "b" / "00-000003.safetensors").unlink()
        made, resumed = train(BOTH, folder=tmp_path, checkpoint_every=1, resume=True)
        assert counts(resumed) == counts(train(BOTH)[1])
        played = [who for who, stage, _ in made.seen if stage == "alone"]
        assert (played.count("a"), played.count("b")) == (1, 2)


class TestCommonResumePoint:
    def stages(self, *kinds):
        made = Alone(losses={}).stages(None)
        given = {"alone": made[0], "once": made[1], "lead": made[2], "train": replace(made[2], parties="all")}
        return [given[kind] for kind in kinds]

    def test_ordinary_stages_resume_at_the_same_epoch(self):
        stages = self.stages("train", "train")
        assert [last_common(stages, moment) for moment in ((0, 3), (1, 0), (1, 2))] == [(0, 3), (1, 0), (1, 2)]

    def test_consecutive_local_stages_share_the_start_of_the_first(self):
        stages = self.stages("alone", "alone", "once", "lead", "lead")
        assert {last_common(stages, moment) for moment in ((0, 0), (0, 7), (1, 2))} == {(0, 0)}
        assert last_common(stages, (2, 0)) == (2, 0)
        assert {last_common(stages, moment) for moment in ((3, 0), (4, 7), (5, 0))} == {(3, 0)}

    def test_the_end_of_an_ordinary_stage_is_its_own_resume_point(self):
        assert last_common(self.stages("alone", "train"), (2, 0)) == (2, 0)
