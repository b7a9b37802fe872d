"""The loop over stages, epochs and batches, with a method whose answers are scripted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from anyparty.config import TrainSettings
from anyparty.core.predictions import Predictions
from anyparty.core.types import Capabilities
from anyparty.errors import AlignmentError, AnypartyWarning, ConfigError, Diverged, ResumeError
from anyparty.methods.method import Stage, State
from anyparty.methods.method_registry import method
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback
from anyparty.training.loop import averaged
from tests import worlds
from tests.worlds import world


class Clock(nn.Module):
    """A network that stores the epoch of its last training step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), -1.0))


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """Learns nothing; after epoch e its answers are off by ``errors[e]``, or missing if that is NaN."""

    errors: Sequence[float] = ()
    stage_names: Sequence[str] = ("train",)
    seen: list[tuple[str, tuple[Any, ...], torch.Tensor, float, bool]] = field(default_factory=list)

    @property
    def can(self):
        return Capabilities(title="Scripted", paper="none", trains_on="labelled rows", predicts_for="any row",
                            needs="any", messages=())  # fmt: skip

    def begin(self, seat, seeds):
        clock = Clock()
        return State(seat, {"clock": clock}, {"clock": seat.optimizer.build(clock.parameters())})

    def stages(self, seat):
        return [Stage(name=name, step=self.step, rows=lambda rows: rows.labeled) for name in self.stage_names]

    async def step(self, net, state, rows, batch):
        clock, (optimizer,) = state.modules["clock"], state.optimizers.values()
        self.seen.append((state.seat.me, batch.step_id, batch.rows, optimizer.param_groups[0]["lr"], clock.training))
        with torch.no_grad():
            clock.weight.fill_(float(batch.step_id[1]) + 100 * self.stage_names.index(batch.step_id[0]))
        return 1.0 + batch.step_id[2] if state.seat.me == "a" else None

    async def predict(self, net, state, rows, batch, asked):
        assert not state.modules["clock"].training
        if state.seat.me != "a":
            return None
        task, off = state.seat.task, self.errors[int(state.modules["clock"].weight.item()) % 100]
        scores = (rows.y[batch.rows] * task.scale + task.mean + off).unsqueeze(1)
        observed = rows.observed[batch.rows]
        return Predictions(task=task, blocks=("a", "b"), scores=scores, took_part=observed, asked=torch.ones(2).bool())


OF = world(K=2, N=30, kind="regression")
VALIDATION = torch.arange(0, 30, 3)
TRAINING = torch.ones(30, dtype=torch.bool).index_fill(0, VALIDATION, False)


def train(errors, *, of=OF, made=None, **settings):
    made = made or Scripted(errors=errors)
    chosen = {"validation": VALIDATION, "training": TRAINING, "epochs": len(errors), "keep": "best", "batch_size": 6}
    return made, worlds.train(made, of, **chosen | settings)


class StageEndReasons(Callback):
    """Collects the reasons for the ends of stages."""

    def __init__(self):
        self.said = []

    def on_stage_end(self, stage, reason):
        self.said.append(reason)


def clocks(trained):
    return {name: int(party.state.modules["clock"].weight) for name, party in trained.items()}


class TestSelection:
    def test_the_best_weights_are_kept_at_every_party(self):
        """With errors 5 3 4 2 6 7 8 9 and a patience of 3, the fourth epoch is best, and the seventh is the last."""
        _, trained = train([5, 3, 4, 2, 6, 7, 8, 9], patience=3)
        assert clocks(trained) == {"a": 3, "b": 3}
        assert [record["epoch"] for record in trained["a"].history] == [1, 2, 3, 4, 5, 6, 7]
        assert trained["a"].best_epoch == 4
        assert trained["b"].history == []

    def test_without_patience_all_epochs_run(self):
        _, trained = train([5, 3, 4, 2, 6, 7, 8, 9])
        assert clocks(trained) == {"a": 3, "b": 3}
        assert len(trained["a"].history) == 8

    def test_keep_last_keeps_the_last_weights(self):
        _, trained = train([5, 3, 4, 2, 6, 7, 8, 9], patience=3, keep="last")
        assert clocks(trained) == {"a": 6, "b": 6}
        assert trained["a"].best_epoch == 0  # validation did not choose an epoch

    @pytest.mark.parametrize(("epochs", "mean"), [(8, 6.5), (9, 7.0), (2, 1.0), (1, 0.0)])
    def test_keep_average_averages_the_last_quarter_of_epochs(self, epochs, mean):
        _, trained = train([1.0] * epochs, keep="average")
        assert {party.state.modules["clock"].weight.item() for party in trained.values()} == {mean}
        assert trained["a"].best_epoch == 0

    def test_a_stop_before_the_last_quarter_keeps_the_last_weights(self):
        watch = StageEndReasons()
        _, trained = train([1, 2, 2, 2, 2, 2, 2, 2], patience=2, keep="average", watch=watch)
        assert clocks(trained) == {"a": 2, "b": 2}
        without = (
            "before the last quarter of the epochs, so that there is nothing to average: the last weights are kept"
        )
        assert watch.said == [f"no improvement; {without}"]
        train([1, 2, 2, 2], keep="average", watch=watch)
        assert watch.said[1:] == ["all epochs done"]

    def test_integer_buffers_are_not_averaged(self):
        state = State(None, {"norm": nn.BatchNorm1d(1)}, {})
        mean = {}
        for before, count in enumerate((3, 5)):
            state.modules["norm"].num_batches_tracked.fill_(count)
            state.modules["norm"].running_mean.fill_(float(count))
            mean = averaged(mean, state, before)
        assert (mean["norm"]["num_batches_tracked"].item(), mean["norm"]["running_mean"].item()) == (5, 4.0)

    def test_of_equally_good_epochs_the_first_is_kept(self):
        _, trained = train([4, 2, 2, 2, 2], patience=2)
        assert clocks(trained) == {"a": 1, "b": 1}
        assert len(trained["a"].history) == 4

    def test_an_epoch_with_an_undefined_score_is_never_the_best(self):
        nan = float("nan")
        with pytest.warns(AnypartyWarning, match="undefined in 3 of 5 epochs"):
            assert clocks(train([nan, 3, nan, 2, nan])[1]) == {"a": 3, "b": 3}

    def test_undefined_scores_do_not_end_the_stage(self):
        """If no epoch has a score on validation rows, the last weights are kept, and the reason reports it."""
        nan, watch = float("nan"), StageEndReasons()
        _, trained = train([nan] * 4, patience=2, watch=watch)
        assert clocks(trained) == {"a": 3, "b": 3}
        assert trained["a"].best_epoch == 0
        without = "no epoch had a rmse on the validation rows, so that none was chosen: the last one's weights are kept"
        assert watch.said == [f"all epochs done; {without}"]
        train([nan, 3, nan, 2], watch=watch)
        assert watch.said[1:] == ["all epochs done"]

    def test_a_metric_to_maximise_selects_its_highest_value(self):
        """Use accuracy, with given shares of correct answers."""
        shares = [0.5, 0.9, 0.7]
        of = world(K=2, N=30, classes=2)

        @dataclass(frozen=True, kw_only=True)
        class Voter(Scripted):
            async def predict(self, net, state, rows, batch, asked):
                if state.seat.me != "a":
                    return None
                right = torch.arange(len(batch.rows)) < shares[int(state.modules["clock"].weight)] * len(batch.rows)
                said = torch.where(right, rows.y[batch.rows], 1 - rows.y[batch.rows])
                return Predictions(task=state.seat.task, blocks=("a", "b"), scores=torch.eye(2)[said],
                                   took_part=rows.observed[batch.rows], asked=torch.ones(2).bool())  # fmt: skip

        _, trained = train(shares, of=of, made=Voter(), metric="accuracy", score_training=0)
        assert [record["validation"]["accuracy"] for record in trained["a"].history] == pytest.approx(shares)
        assert clocks(trained) == {"a": 1, "b": 1}

    def test_without_validation_rows_the_last_epoch_is_kept(self):
        _, trained = train([5, 1, 9], validation=torch.arange(0), patience=1)
        assert clocks(trained) == {"a": 2, "b": 2}
        assert all("validation" not in record for record in trained["a"].history)


class TestSeveralStages:
    def test_intermediate_saves_record_the_best_epoch(self, tmp_path):
        for keep, places in (("best", [1, 2, 2, 4, 5, 5]), ("last", [0] * 6)):
            kept = []
            made = Scripted(errors=[5, 1, 9], stage_names=("first", "second"))
            train([5, 1, 9], made=made, keep=keep, folder=tmp_path / keep, checkpoint_every=1,
                  kept=lambda history, best, kept=kept: kept.append((len(history), best)))  # fmt: skip
            assert kept == list(zip(range(1, 7), places, strict=True))

    def test_the_best_epoch_is_counted_in_the_whole_history(self):
        _, trained = train([5, 1, 9], made=Scripted(errors=[5, 1, 9], stage_names=("first", "second")))
        assert [(r["stage"], r["epoch"]) for r in trained["a"].history][trained["a"].best_epoch - 1] == ("second", 2)
        assert trained["a"].best_epoch == 5
        assert clocks(trained) == {"a": 101, "b": 101}

    @staticmethod
    def continued(then, **settings):
        """Train three epochs that are off by 5, 1 and 9, then a stage that continues from them, off by ``then``."""

        @dataclass(frozen=True, kw_only=True)
        class Continued(Scripted):
            def stages(self, seat):
                first, second = super().stages(seat)
                return [first, replace(second, continues=True, epochs=len(then))]

            async def predict(self, net, state, rows, batch, asked):
                said = await super().predict(net, state, rows, batch, asked)
                if said is None or state.modules["clock"].weight < 100:
                    return said
                epoch = int(state.modules["clock"].weight) % 100
                return replace(said, scores=said.scores + then[epoch] - self.errors[epoch])

        made = Continued(errors=[5, 1, 9, 0, 0, 0], stage_names=("first", "second"))
        return train([5, 1, 9], made=made, **settings)[1]

    @pytest.mark.parametrize(("then", "clock", "place"), [([4, 3, 2], 1, 2), ([4, 0.5, 2], 101, 5)])
    def test_a_continuing_stage_keeps_the_earlier_weights_unless_it_improves(self, then, clock, place):
        trained = self.continued(then)
        assert clocks(trained) == {"a": clock, "b": clock}
        assert trained["a"].best_epoch == place

    def test_without_validation_rows_the_last_weights_are_kept(self):
        assert clocks(self.continued([4, 3, 2], validation=torch.arange(0))) == {"a": 102, "b": 102}

    def test_patience_begins_with_the_stage(self):
        trained = self.continued([4, 3, 2, 2, 2], patience=2)
        assert [record["stage"] for record in trained["a"].history] == ["first"] * 3 + ["second"] * 2
        assert clocks(trained) == {"a": 1, "b": 1}


class TestScoresOfTrainingRows:
    """Some training rows are scored in the same messages as the validation rows."""

    @pytest.fixture
    def scored(self):
        """Return a function that trains, and returns the requested rows of every epoch's end and the history."""

        def play(errors=(5, 3, 0.5), **settings):
            asked = []

            @dataclass(frozen=True, kw_only=True)
            class Unlike(Scripted):
                """Is off by ``errors`` on validation rows, and by half of that on the others."""

                async def predict(self, net, state, rows, batch, asked_parties):
                    said = await super().predict(net, state, rows, batch, asked_parties)
                    if said is None:
                        return None
                    asked.append(batch.rows)
                    off = self.errors[int(state.modules["clock"].weight.item())]
                    half = torch.where(torch.isin(batch.rows, VALIDATION), 0.0, off / 2)
                    return replace(said, scores=said.scores - half.unsqueeze(1))

            _, trained = train(errors, made=Unlike(errors=errors), **settings)
            return asked, trained["a"].history

        return play

    def test_training_and_validation_rows_are_scored_by_the_same_metrics(self, scored):
        _, history = scored()
        assert [epoch["validation"]["mae"] for epoch in history] == pytest.approx([5, 3, 0.5])
        assert [epoch["training"]["mae"] for epoch in history] == pytest.approx([2.5, 1.5, 0.25])
        assert all(epoch["training"].keys() == epoch["validation"].keys() for epoch in history)

    @pytest.mark.parametrize(("wanted", "count"), [(4, 4), (1024, 10)])
    def test_at_most_as_many_training_rows_as_validation_rows_are_scored(self, scored, wanted, count):
        asked, _ = scored(score_training=wanted)
        for rows in asked:
            training = rows[~torch.isin(rows, VALIDATION)]
            assert len(training) == len(set(training.tolist())) == count
            assert len(rows) - count == len(VALIDATION)
            assert torch.equal(rows, asked[0])

    def test_no_training_rows_are_scored_if_score_training_is_0(self, scored):
        asked, history = scored(score_training=0)
        assert all(torch.equal(rows, VALIDATION) for rows in asked)
        assert not any("training" in epoch for epoch in history)


class TestRecords:
    def test_each_epoch_records_its_loss_and_metrics(self):
        """20 training rows in batches of 6, 6, 6, 2 with losses 1, 2, 3, 4 give (6+12+18+8)/20 = 2.2 per row.

        An answer that is off by e has an rmse and mae of e, in the label's own units.
        """
        _, trained = train([5, 3, 0.5])
        for epoch, (record, error) in enumerate(zip(trained["a"].history, [5, 3, 0.5], strict=True)):
            assert record["stage"] == "train"
            assert record["epoch"] == epoch + 1
            assert record["loss"] == pytest.approx(2.2)
            assert record["seconds"] >= 0
            assert record["validation"] == pytest.approx({"mae": error, "rmse": error}, rel=1e-4)

    def test_the_chosen_metric_is_recorded_with_its_tie_break(self):
        _, trained = train([5, 3], metric="mae")
        assert trained["a"].history[0]["validation"].keys() == {"mae", "rmse"}  # the RMSE breaks ties

    def test_a_callback_receives_every_event(self):
        heard = []

        @dataclass
        class Ear(Callback):
            def on_stage_begin(self, stage, epochs, rows, first_epoch):
                heard.append((stage, epochs, rows, first_epoch))

            def on_batch_end(self, rows, loss):
                heard.append((rows, loss))

            def on_epoch_end(self, record):
                heard.append(record["epoch"])

            def on_stage_end(self, stage, reason):
                heard.append((stage, reason))

        train([5, 6], watch=Ear(), patience=1)
        epoch = [(6, 1.0), (6, 2.0), (6, 3.0), (2, 4.0)]
        assert heard == [("train", 2, 20, 0), *epoch, 1, *epoch, 2, ("train", "no improvement")]
        heard.clear()
        train([6, 5], watch=Ear(), patience=1)
        assert heard[-1] == ("train", "all epochs done")

    def test_the_learning_rate_follows_its_schedule(self):
        """The rate is halved from the third epoch on, at each party by its own optimizer's settings."""
        falls = Optimizer(name="sgd", lr=0.8, schedule="step", milestones=(2,), gamma=0.5)
        made, _ = train([1, 1, 1, 1], optimizer=falls)
        for name in "ab":
            rates = {moment[1]: lr for me, moment, _, lr, _ in made.seen if me == name}
            assert rates == pytest.approx({0: 0.8, 1: 0.8, 2: 0.4, 3: 0.4})


class TestBatches:
    @pytest.mark.parametrize("batches", ["mixed", "by-pattern"])
    def test_every_epoch_uses_exactly_the_training_rows(self, batches):
        made, _ = train([1, 1, 1], batches=batches)
        for name in "ab":
            for epoch in range(3):
                rows = torch.cat([rows for me, moment, rows, *_ in made.seen if me == name and moment[1] == epoch])
                assert torch.equal(rows.sort().values, TRAINING.nonzero().squeeze(1))
        assert all(training for *_, training in made.seen)

    @pytest.mark.parametrize("batches", ["mixed", "by-pattern"])
    def test_all_parties_use_the_same_batches(self, batches):
        made, _ = train([1, 1], batches=batches)
        played = {name: [(m, rows.tolist()) for me, m, rows, *_ in made.seen if me == name] for name in "ab"}
        assert played["a"] == played["b"]
        epochs = [[rows for moment, rows in played["a"] if moment[1] == epoch] for epoch in (0, 1)]
        assert epochs[0] != epochs[1]

    def test_with_by_pattern_each_batch_has_a_single_presence_pattern(self):
        made, _ = train([1, 1], batches="by-pattern", batch_size=4)
        for _, _, rows, *_ in made.seen:
            assert (OF.observed[rows] == OF.observed[rows[0]]).all()

    def test_unlabelled_rows_do_not_train(self):
        made, _ = train([1], of=world(K=2, N=30, kind="regression", labeled=torch.arange(30) < 20))
        assert max(int(rows.max()) for _, _, rows, *_ in made.seen) < 20

    def test_a_run_without_training_rows_is_refused(self):
        with pytest.raises(
            AlignmentError, match="Scripted trains on labelled rows, and there is none among 0 training rows"
        ):
            train([1], training=torch.zeros(30, dtype=torch.bool))

    def test_standard_vfl_needs_rows_that_all_parties_have(self):
        of = world(K=2, observed=torch.tensor([[True, False], [False, True]]).repeat(6, 1))
        with pytest.raises(
            AlignmentError, match="Standard VFL trains on labelled rows that all parties have, and there is none"
        ):
            worlds.train(method("standard"), of)

    def test_values_of_validation_rows_do_not_change_weights(self):
        """Only the choice of the best epoch may depend on them."""
        other = world(K=2, N=30, kind="regression")
        other.rows["a"].y[VALIDATION] = 1e3
        for rows in other.rows.values():
            held = rows.block.position[VALIDATION]
            rows.block.x[held[held >= 0]] = -50.0
        chosen = {"validation": VALIDATION, "training": TRAINING, "keep": "last"}
        one, two = (worlds.train(method("laser", embedding=4), of, **chosen) for of in (OF, other))
        assert worlds.same_bits(*(worlds.weights(worlds.states_of(trained)) for trained in (one, two)))
        assert one["a"].history[0]["validation"] != two["a"].history[0]["validation"]


@dataclass
class Stops(Callback):
    """Interrupts training after an epoch of a stage."""

    stage: str
    epoch: int

    def on_epoch_end(self, record):
        if (record["stage"], record["epoch"]) == (self.stage, self.epoch):
            raise KeyboardInterrupt


class TestStages:
    @staticmethod
    def made():
        return Scripted(errors=[3, 1, 2], stage_names=("pretrain", "train"))

    def test_stages_run_in_order_and_each_keeps_its_own_best_weights(self):
        _, trained = train([3, 1, 2], made=self.made())
        assert [(record["stage"], record["epoch"]) for record in trained["a"].history] == [
            ("pretrain", 1), ("pretrain", 2), ("pretrain", 3), ("train", 1), ("train", 2), ("train", 3)
        ]  # fmt: skip
        assert clocks(trained) == {"a": 101, "b": 101}

    @pytest.mark.parametrize(("stage", "epoch"), [("pretrain", 3), ("train", 1), ("train", 3)])
    def test_a_run_resumes_from_any_stage(self, tmp_path, stage, epoch):
        whole = train([3, 1, 2], made=self.made())[1]
        run = partial(train, [3, 1, 2], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(made=self.made(), watch=Stops(stage, epoch))
        _, trained = run(made=self.made(), resume=True)
        assert clocks(trained) == clocks(whole)
        assert [(r["stage"], r["epoch"]) for r in trained["a"].history] == [
            (r["stage"], r["epoch"]) for r in whole["a"].history
        ]  # fmt: skip


class TestResuming:
    def test_resuming_a_run_that_stopped_early_trains_no_further(self, tmp_path):
        errors = [5, 3, 4, 2, 6, 7, 8, 9]
        _, trained = train(errors, folder=tmp_path, patience=3, checkpoint_every=5)
        made, again = train(errors, folder=tmp_path, patience=3, checkpoint_every=5, resume=True)
        assert made.seen == []
        assert clocks(again) == clocks(trained) == {"a": 3, "b": 3}
        assert again["a"].history == trained["a"].history
        assert again["a"].best_epoch == 4

    def test_the_best_epoch_before_an_interruption_is_kept(self, tmp_path):
        run = partial(train, [5, 1, 4, 3, 6], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 4))
        _, trained = run(resume=True)
        assert clocks(trained) == {"a": 1, "b": 1}
        assert trained["a"].best_epoch == 2

    def test_an_average_of_weights_is_resumed(self, tmp_path):
        run = partial(train, [1.0] * 8, folder=tmp_path, checkpoint_every=1, keep="average")
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 7))
        _, trained = run(resume=True)
        assert {party.state.modules["clock"].weight.item() for party in trained.values()} == {6.5}

    def test_all_parties_resume_from_their_last_common_checkpoint(self, tmp_path):
        """Party b was killed before its checkpoint of the fourth epoch, so both resume from the third."""
        run = partial(train, [5, 1, 4, 3, 6], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 5))
        assert sorted(path.stem for path in (tmp_path / "b").glob("*.safetensors"))[-1] in ("00-000004", "00-000005")
        for path in (tmp_path / "b").glob("*.safetensors"):
            if path.stem > "00-000003":
                path.unlink()
        made, trained = run(resume=True)
        went_on = {me: min(moment[1] for who, moment, *_ in made.seen if who == me) for me in "ab"}
        assert went_on["a"] == went_on["b"]
        assert clocks(trained) == {"a": 1, "b": 1}

    def test_without_a_common_checkpoint_each_party_uses_its_own_last(self, tmp_path):
        """Party b was away longer than checkpoints are kept: it resumes from the first epoch, a from the fourth."""
        run = partial(train, [5, 1, 4, 3, 6], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 2))
        kept = (tmp_path / "b" / "00-000001.safetensors").read_bytes()
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 4), resume=True)
        for path in (tmp_path / "b").glob("*.safetensors"):
            path.unlink()
        (tmp_path / "b" / "00-000001.safetensors").write_bytes(kept)
        with pytest.warns(AnypartyWarning, match="no epoch has a checkpoint at all .* the last saved networks of 'b'"):
            made, _ = run(resume=True)
        went_on = {me: min(moment[1] for who, moment, *_ in made.seen if who == me) for me in "ab"}
        assert went_on["a"] == went_on["b"] > 1

    def test_a_party_without_a_checkpoint_is_reported(self, tmp_path):
        run = partial(train, [5, 1, 4], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 3))
        for path in (tmp_path / "b").glob("*.safetensors"):
            path.unlink()
        with pytest.raises(ResumeError, match="cannot resume: 'b' has no checkpoint of this run"):
            run(resume=True)

    def test_a_run_killed_during_its_first_checkpoints_starts_again(self, tmp_path):
        """The run was killed after the active party's first checkpoint, and before the last party's."""
        whole = train([5, 1, 4], folder=tmp_path / "whole")[1]
        run = partial(train, [5, 1, 4], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            run(watch=Stops("train", 2))
        for path in [*(tmp_path / "b").glob("*.safetensors"), *sorted((tmp_path / "a").glob("*.safetensors"))[1:]]:
            path.unlink()
        assert [path.stem for path in (tmp_path / "a").glob("*.safetensors")] == ["00-000001"]
        made, trained = run(resume=True)
        assert min(moment[1] for _, moment, *_ in made.seen) == 0
        assert clocks(trained) == clocks(whole)
        assert len(trained["a"].history) == 3

    def test_a_new_run_deletes_the_checkpoints_of_another(self, tmp_path):
        """The new run's first checkpoints sort before those of a longer run, and would be deleted as the oldest."""
        train([5, 1, 4, 3, 6], folder=tmp_path, checkpoint_every=1)
        with pytest.raises(KeyboardInterrupt):
            train([5, 1, 4, 3, 6], folder=tmp_path, checkpoint_every=1, watch=Stops("train", 3))
        assert [path.stem for path in sorted((tmp_path / "a").glob("*.safetensors"))] == ["00-000001", "00-000002"]


class TestAgreement:
    def test_different_settings_are_refused_and_listed(self):
        same = {"version": "1", "method": "laser", "train": "epochs=3"}
        with pytest.raises(
            ConfigError, match="party 'b' runs with other settings than the active party 'a': method, train;"
        ):
            worlds.train(method("laser"), OF, agreed={"a": same, "b": same | {"method": "local", "train": "epochs=4"}})

    def test_only_hashes_of_settings_are_sent(self):
        at, settings = worlds.Table(), {"one": "x" * 500, "two": "y"}
        worlds.train(method("laser", embedding=4), OF, at=at, agreed={"a": settings, "b": settings})
        (hello,) = [tensors for _, _, tag, tensors in at.notes if tag == "hello"]
        assert hello["settings"].shape == (2, 32)
        assert hello["checkpoints"].shape == (0,)


class TestDiverging:
    def test_divergence_names_the_stage_the_epoch_and_the_batch(self):
        of = replace(OF, rows=OF.rows | {"a": replace(OF.rows["a"], y=OF.y.clone())})
        of.rows["a"].y[[n for n in range(30) if TRAINING[n]][3]] = float("nan")
        with pytest.raises(
            Diverged, match=r"the loss is nan at stage 'train', epoch 1, batch \d: lower the learning rate"
        ):
            worlds.train(method("laser", embedding=4), of, batch_size=6)

    @pytest.mark.parametrize("sick", ["a", "b"])
    def test_divergence_names_the_party_whose_embeddings_diverged(self, sick):
        """The error names the party whose learning rate is too high."""
        of = world(K=2, N=32)
        parts: dict[str, Callable[..., Any]] = {}
        for name in "ab":
            optimizer = Optimizer(name="sgd", lr=1e38 if name == sick else 0.01)
            seat = of.seat(name, optimizer=optimizer)
            parts[name] = partial(_part, seat, of)
        with pytest.raises(
            Diverged, match=rf"party '{sick}': its embeddings are no longer numbers at .*epoch 1, batch 2"
        ):
            worlds.Table().play(of.roster, (*method("laser").can.messages, *worlds.control_messages.MESSAGES), parts)


async def _part(seat, of, net):
    part = worlds.PartyRun(
        seat=seat, method=method("laser", embedding=4), rows=of.rows[seat.me],
        settings=TrainSettings(epochs=2, batch_size=8), agreed={"settings": "same"},
        training=of.usable, validation=torch.arange(0),
    )  # fmt: skip
    return await worlds.train_part(part, net)
