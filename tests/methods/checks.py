"""The checks that every method must pass: named functions over the cases of ``cases.py``.

A check is a function of a case and a folder to write into.  Exceptions are data with a reason, in ``test_checks.py``.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anyparty.core.predictions import Predictions
from anyparty.core.types import Capabilities
from anyparty.errors import AnypartyWarning, ConfigError, Diverged, MessageError, PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.split.split_method import Split
from anyparty.networks.optimizer import Optimizer
from anyparty.training.callbacks import Callback
from anyparty.training.checkpoint import load_module, tensors_of
from anyparty.transport.contract import roles
from tests import worlds
from tests.methods.cases import ADAM, BAD, BAD_OF_ALL, Case
from tests.worlds import SGD, Table, World

# The checks


def check_refuses_bad_parameters(case: Case, folder: Path) -> None:
    for bad in (*BAD[case.of], *BAD_OF_ALL):
        (parameter,) = bad
        with pytest.raises(ConfigError, match=parameter):
            method(case.of, **{**case.parameters, **bad})


def check_says_what_it_can(case: Case, folder: Path) -> None:
    can = case.make().can
    assert isinstance(can, Capabilities)
    assert all((can.title, can.paper, can.trains_on, can.predicts_for))
    assert all(declared.holds and declared.learns for declared in can.messages)


def check_only_declared_messages_cross(case: Case, folder: Path) -> None:
    of, made, at = case.draw(), case.make(), Table()
    _step_and_predict(case, of, at)
    assert at.notes
    crossed = set()
    for sender, to, tag, _ in at.notes:
        by = [
            message for message in made.can.messages
            if message.tag == tag and message.frm in roles(of.roster, sender) and message.to in roles(of.roster, to)
        ]  # fmt: skip
        assert by, f"{sender} sends {tag} to {to}"
        crossed.update(by)
    for message in crossed:  # a party that sends an undeclared message is stopped
        fewer = Table(declared=[other for other in made.can.messages if other.tag != message.tag])
        with pytest.raises(MessageError, match=f"tried to send '{message.tag}'.* does not declare"):
            _step_and_predict(case, of, fewer)
        assert all(tag != message.tag for _, _, tag, _ in fewer.notes)


def _step_and_predict(case: Case, of: World, at: Table) -> None:
    states = case.begin(of)
    for stage in case.stages(of):
        worlds.step(case.make(), of, states, case.trainable(of, stage), at=at, stage=stage)
    worlds.predict(case.make(), of, states, at=at)


def check_no_message_holds_a_cell_a_label_or_an_id(case: Case, folder: Path) -> None:
    of, at = case.draw(), Table()
    _step_and_predict(case, of, at)
    secret = torch.cat([x.flatten() for x in of.x.values()])
    if of.task.kind == "regression":
        secret = torch.cat([secret, of.y, of.y * of.task.scale + of.task.mean])
    assert {message.tag for message in case.make().can.messages if not message.when} <= {note[2] for note in at.notes}
    for sender, to, tag, tensors in at.notes:
        for name, tensor in tensors.items():
            what = f"{tag} {name} from {sender} to {to}"
            if (tag, name) == ("outputs", "heard"):  # one value per party, not per row: whether its embeddings arrived
                assert (tensor.dtype, tensor.shape) == (torch.bool, (of.roster.K,)), what
                continue
            assert tensor.dtype == torch.float32, f"{what}: classes and ids are whole numbers"
            assert not tensor.any() or (tensor != tensor.round()).any(), f"{what} holds whole numbers"
            equal = torch.isin(tensor, secret).float()
            assert not equal.numel() or equal.mean() < 0.005, f"{what} holds a cell or a label"  # chance: 1 of 200
            assert len(tensor) <= of.n * case.parameters.get("samples", 1), f"{what} has more rows than there are"


def check_unobserved_cells_do_not_matter(case: Case, folder: Path) -> None:
    labeled = torch.arange(40) % 5 != 3
    results = []
    for garbage in (False, True):
        of = case.draw(N=40, labeled=labeled, garbage=garbage)
        trained = case.train(of, epochs=2)
        states = worlds.states_of(trained)
        results.append((worlds.weights(states), worlds.answers_of(worlds.predict(case.make(), of, states))))
    assert any(torch.isnan(rows.block.x).any() for rows in of.rows.values() if rows.block)
    assert all(torch.isfinite(tensor).all() for tensor in results[0][0].values())
    assert worlds.same_bits(results[0][0], results[1][0])
    assert worlds.same_bits(results[0][1], results[1][1])


def check_gradients_equal_the_joint_reference(case: Case, folder: Path) -> None:
    for seed, stage in itertools.product(range(2), case.stages(case.draw())):
        of, made = case.draw(N=21, seed=seed), case.make()
        states = case.begin(of, seed=seed)
        rows = case.trainable(of, stage)
        rows = rows[torch.randperm(len(rows))]
        loss, expected = case.joint(made, of, states, worlds.batch_of(rows, seed, seed, stage))
        got = worlds.step(made, of, states, rows, number=seed, seed=seed, stage=stage)
        found = worlds.gradients(states)
        assert found.keys() >= expected.keys()
        assert all(not found[name].any() for name in found.keys() - expected.keys())  # parameters that are not trained
        for name, gradient in expected.items():
            assert torch.allclose(found[name].double(), gradient, rtol=1e-4, atol=case.rounding), name
        assert any(gradient.abs().max() > 1e-3 for gradient in expected.values())
        if not isinstance(made, Split) or len(made.topology(of.roster).hosts) == 1:
            assert (0.0 if got is None else got) == pytest.approx(loss, rel=1e-5, abs=case.rounding / 10)


def check_same_over_another_carrier(case: Case, folder: Path) -> None:
    of = case.draw(N=40)
    results = []
    for carrier in (Table().carrier, partial(worlds.by_hand, seed=1), partial(worlds.by_hand, seed=2)):
        at = Table(carrier)
        states = worlds.states_of(case.train(of, epochs=2, validation=torch.arange(0, 40, 4), at=at))
        answers = worlds.answers_of(worlds.predict(case.make(), of, states, at=Table(carrier)))
        results.append((worlds.weights(states), answers, at.ledger.rows()))
    for other in results[1:]:
        assert worlds.same_bits(results[0][0], other[0])
        assert worlds.same_bits(results[0][1], other[1])
        assert results[0][2] == other[2]


def check_same_seed_same_bits(case: Case, folder: Path) -> None:
    of = case.draw(N=40)
    runs = []
    for noise, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(noise)  # torch's global generator must not matter
        runs.append(worlds.weights(worlds.states_of(case.train(of, epochs=2, seed=seed))))
    assert worlds.same_bits(runs[0], runs[1])
    assert not worlds.same_bits(runs[0], runs[2])


class Stop(Exception):  # noqa: N818 - an interruption, not an error
    pass


@dataclass
class Interrupts(Callback):
    """Interrupts a run in the middle of an epoch."""

    batches: int

    def on_batch_end(self, rows: int, loss: float) -> None:
        self.batches -= 1
        if self.batches == 0:
            raise Stop


RESUMED = {
    "momentum, cosine": Optimizer(name="sgd", lr=0.05, momentum=0.9, schedule="cosine", weight_decay=1e-3),
    "adam": Optimizer(name="adam", lr=0.01),
    "adamw, step": Optimizer(name="adamw", lr=0.01, weight_decay=0.1, schedule="step", milestones=(2, 4)),
}


def check_resumed_equals_uninterrupted(case: Case, folder: Path) -> None:
    of = case.draw(N=56)
    validation = torch.arange(0, 56, 4)
    training = torch.ones(56, dtype=torch.bool)
    training[validation] = False
    settings = {"epochs": 7, "validation": validation, "training": training, "keep": "best", "checkpoint_every": 2}
    chosen = list(RESUMED) if case.title == case.of else [list(RESUMED)[len(case.title) % len(RESUMED)]]
    for name in chosen:
        patience = 5 if "pseudo" in case.title else 4  # a stage that continues from another may never improve
        run = partial(case.train, of, optimizer=RESUMED[name], patience=patience, **settings)
        warnings.filterwarnings("ignore", "stage .*: no later epoch had a better", AnypartyWarning)  # a few steps
        whole = run()
        lead, before = of.roster.active, 0
        for number, stage in enumerate(case.stages(of)):
            at, an_epoch = folder / name / str(number), -(-int(training[case.trainable(of, stage)].sum()) // 8)
            with pytest.raises(Stop):  # in the fifth epoch: the last checkpoint is that of the fourth
                run(folder=at, watch=Interrupts(before + 4 * an_epoch + max(1, an_epoch - 1)))
            assert sorted(path.name for path in (at / lead).glob("*.safetensors")) == [
                f"{number:02d}-000002.safetensors", f"{number:02d}-000004.safetensors"
            ]  # fmt: skip
            seen = Counts()
            resumed = run(folder=at, watch=seen, resume=True)
            assert seen.first_epoch == 4
            _same_run(whole, resumed, lead)
            before += an_epoch * sum(record["stage"] == stage for record in whole[lead].history)


def _same_run(whole: dict[str, Any], other: dict[str, Any], lead: str) -> None:
    assert worlds.same_bits(worlds.weights(worlds.states_of(whole)), worlds.weights(worlds.states_of(other)))
    assert _timeless(whole[lead].history) == _timeless(other[lead].history)
    assert whole[lead].best_epoch == other[lead].best_epoch


@dataclass
class Counts(Callback):
    """Records the epoch at which a run was resumed."""

    first_epoch: int = -1

    def on_stage_begin(self, stage: str, epochs: int, rows: int, first_epoch: int) -> None:
        if self.first_epoch < 0:
            self.first_epoch = first_epoch


def _timeless(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history]


def check_prediction_ignores_batching_and_row_order(case: Case, folder: Path) -> None:
    of, made = case.draw(N=35), case.make()
    states = worlds.states_of(case.train(of, epochs=2))
    whole = worlds.predict(made, of, states)
    order = torch.randperm(of.n, generator=torch.Generator().manual_seed(3))
    shuffled = worlds.predict(made, of, states, order)
    _same_answers(whole, shuffled, order)
    alone = [worlds.predict(made, of, states, torch.tensor([n])) for n in range(of.n)]
    for n, one in enumerate(alone):
        _same_answers(whole, one, torch.tensor([n]))


def _same_answers(whole: Predictions, part: Predictions, rows: Tensor) -> None:
    """Check that ``part`` answers ``rows`` like ``whole``: numbers to 1e-6, classes and provenance exactly."""
    assert torch.allclose(part.scores, whole.scores[rows], atol=1e-6, equal_nan=True)
    assert torch.equal(part.took_part, whole.took_part[rows])
    assert part.reasons == {i: whole.reasons[n] for i, n in enumerate(rows.tolist()) if n in whole.reasons}
    if whole.task.kind == "classification":
        assert part.labels() == [whole.labels()[n] for n in rows.tolist()]
    if whole.by_party is not None:
        assert torch.allclose(part.by_party, whole.by_party[rows], atol=1e-6, equal_nan=True)


def check_one_row_at_a_time(case: Case, folder: Path) -> None:
    of, made = case.draw(), case.make()
    states = case.begin(of)
    pairs = [(stage, n) for stage in case.stages(of) for n in case.trainable(of, stage).tolist()[:8]]
    for stage, n in pairs:
        before = worlds.weights(states)
        assert math.isfinite(worlds.step(made, of, states, torch.tensor([n]), number=n, stage=stage) or 0.0)
        after = worlds.weights(states)
        assert not worlds.same_bits(before, after)
        assert all(torch.isfinite(tensor).all() for tensor in after.values())


def check_one_party(case: Case, folder: Path) -> None:
    of = case.draw(K=1, N=20, **({"labelers": (0,)} if "labelers" in case.world else {}))
    trained = case.train(of, epochs=2)
    answered = worlds.predict(case.make(), of, worlds.states_of(trained))
    assert bool(answered.answered.all())
    assert answered.took_part.tolist() == [[True]] * 20


def check_rows_that_nobody_has_get_no_number(case: Case, folder: Path) -> None:
    observed = worlds.all_patterns(24, 3)
    observed[::4] = False
    of, made = case.draw(observed=observed), case.make()
    states = case.begin(of)
    answered = worlds.predict(made, of, states)
    unknown = ~observed.any(dim=1)
    assert torch.isnan(answered.scores[unknown]).all()
    assert not answered.took_part[unknown].any()
    assert all("no party" in answered.reasons[n] for n in unknown.nonzero().squeeze(1).tolist())
    assert set(answered.reasons) == set((~answered.answered).nonzero().squeeze(1).tolist())
    nobody = worlds.predict(made, of, states, unknown.nonzero().squeeze(1))
    assert torch.isnan(nobody.scores).all()
    assert not nobody.answered.any()
    none = worlds.predict(made, of, states, torch.arange(0))
    assert len(none) == 0


def check_absent_parties_are_not_asked(case: Case, folder: Path) -> None:
    """Asking fewer parties gives the same bits as if the others did not have the rows."""
    of, made = case.draw(), case.make()
    states = case.begin(of)
    first = of.roster.blocks[:2]
    at = Table()
    asked = worlds.predict(made, of, states, asked=first, at=at)
    held = worlds.predict(made, replace(of, rows=_cut(of, 2)), states)
    assert worlds.same_bits(_but_asked(asked), _but_asked(held))
    assert asked.asked.tolist() == [True, True, False]
    assert not asked.took_part[:, 2].any()
    assert all(sender != of.roster.blocks[2] for sender, _, tag, _ in at.notes if tag != "outputs")
    assert asked.reasons == held.reasons


def _cut(of: World, k: int) -> dict[str, Any]:
    """Return the rows of all parties as if party k had none."""
    name = of.roster.blocks[k]
    rows = {}
    for party, own in of.rows.items():
        block = own.block
        if party == name:
            block = replace(block, position=torch.full_like(block.position, -1))
        observed = own.observed
        if observed is not None:
            observed = observed.clone()
            observed[:, k] = False
        rows[party] = replace(own, block=block, observed=observed)
    return rows


def _but_asked(answered: Predictions) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in worlds.answers_of(answered).items() if name != "asked"}


def check_no_labels_in_the_batch(case: Case, folder: Path) -> None:
    """A batch without labels changes no weight under plain gradient descent, neither first nor after another batch."""
    labeled = torch.arange(24) < 14
    of, made = case.draw(labeled=labeled, garbage=True), case.make()
    for stage in with_labels(case, of):
        states = case.begin(of, optimizer=SGD)
        worlds.step(made, of, states, case.trainable(of, stage), stage=stage)
        before = {name: tensor for name, tensor in worlds.weights(states).items() if not name.endswith("calls")}
        assert worlds.step(made, of, states, torch.arange(14, 24), number=1, stage=stage) in {None, 0.0}
        after = worlds.weights(states)
        assert worlds.same_bits(before, {name: after[name] for name in before})


def with_labels(case: Case, of: World) -> list[str]:
    """Return the stages that train only on labelled rows; there must be at least one."""
    found = [stage for stage in case.stages(of) if of.labeled[case.trainable(of, stage)].all()]
    assert found
    assert len(found) == len(case.stages(of)) or case.make().can.unlabelled
    return found


def check_unlabelled_rows_in_a_batch_teach_nothing(case: Case, folder: Path) -> None:
    """Unlabelled rows may reduce the size of a step, but must not change its direction."""
    labeled = torch.arange(24) % 3 != 1
    of, made = case.draw(labeled=labeled, garbage=True), case.make()
    extra = (~labeled & of.observed.any(1)).nonzero().squeeze(1)
    for stage in with_labels(case, of):
        rows, found = case.trainable(of, stage), []
        for batch in (rows, torch.cat([rows, extra])):
            states = case.begin(of, optimizer=SGD)
            worlds.step(made, of, states, batch, stage=stage)
            found.append(worlds.gradients(states))
        share = len(rows) / (len(rows) + len(extra)) if case.of == "laser" else 1.0
        for name in found[0]:
            assert torch.allclose(found[0][name] * share, found[1][name], atol=1e-6), name


def check_what_is_no_longer_a_number_is_named(case: Case, folder: Path) -> None:
    wild = Optimizer(name="sgd", lr=1e30)
    with pytest.raises(Diverged, match=r"at stage '\w+', epoch \d+, batch \d+: lower .*learning rate"):
        case.train(case.draw(), optimizer=wild, epochs=20)


def check_a_party_that_leaves_is_missed_and_not_replaced(case: Case, folder: Path) -> None:
    """Without party b, the others behave as if it had no row, to the last bit, or raise an error."""
    of, made = case.draw(), case.make()
    cut = replace(of, rows=_cut(of, 1))
    for stage in case.stages(of):
        rows = case.trainable(cut, stage)
        if not len(rows):  # without b, no row can be trained on
            with pytest.raises(PartyLost, match=r"party 'b' is gone"):
                worlds.step(made, of, case.begin(of), case.trainable(of, stage), leaves={"b"}, stage=stage)
        else:
            left, had_none = case.begin(of), case.begin(of)
            worlds.step(made, of, left, rows, leaves={"b"}, stage=stage)
            worlds.step(made, cut, had_none, rows, stage=stage)
            assert worlds.same_bits(worlds.weights(left), worlds.weights(had_none))
    states = case.begin(of)
    for name, k in (("b", 1), ("c", 2)):  # c may hold labels, and heads
        answered = worlds.predict(made, of, states, leaves={name})
        held = worlds.predict(made, replace(of, rows=_cut(of, k)), states)
        assert worlds.same_bits(worlds.answers_of(answered), worlds.answers_of(held))
        assert answered.silent == (name,)
        assert answered.asked.tolist() == [True] * 3


def planted(case: Case, *, shuffled: bool) -> tuple[float, float]:
    """Train where only party c's columns predict the label; return the score on new rows, and the score of guessing.

    For classes, the score is the share of correct answers; for numbers, the correlation.
    """
    observed = worlds.all_patterns(700, 3) | (torch.arange(700) % 3 > 0).unsqueeze(1)  # 2/3 of rows are whole
    signal = None if shuffled else 2
    of = case.draw(observed=observed, classes=2, signal=signal, shuffled=shuffled)
    trains = torch.arange(700) < 350
    settings = {"epochs": 12, "batch_size": 32, "optimizer": ADAM, "training": trains}
    states = worlds.states_of(case.train(of, **settings))
    judged = (~trains & observed[:, 2]).nonzero().squeeze(1)
    answered = worlds.predict(case.make(), of, states, judged)
    scores = answered.scores if case.of != "local" or shuffled else answered.by_party[:, 2]
    y, known = of.y[judged], ~torch.isnan(scores).any(1)
    assert known.float().mean() > 0.5
    if of.task.kind == "regression":
        pair = torch.stack([scores[known, 0], y[known]])
        return float(torch.corrcoef(pair)[0, 1]), 0.0
    return float((scores[known].argmax(1) == y[known]).float().mean()), 0.5


def check_a_model_is_its_networks(case: Case, folder: Path) -> None:
    """Saved weights are complete: re-initialised networks of another seed give the same answers after loading them."""
    of = case.draw()
    trained = worlds.states_of(case.train(of, epochs=2))
    torch.manual_seed(7)  # weights outside the networks would be initialised differently
    made = case.make()
    again = worlds.begin(made, of, seed=1, encoder=case.encoder, optimizer=case.optimizer)
    for name, state in again.items():
        for module, network in state.modules.items():
            load_module(network, tensors_of(trained[name].modules[module]), folder, module)
        state.train(False)
    _same_answers(worlds.predict(case.make(), of, trained), worlds.predict(made, of, again), of.places())


def check_finds_a_signal_planted_at_a_passive_party(case: Case, folder: Path) -> None:
    """Classes must be predicted better than by guessing; numbers must correlate as only that party's column does."""
    found, chance = planted(case, shuffled=False)
    margin = 0.8 if case.draw(N=24).task.kind == "regression" else 0.2
    assert found > chance + margin, f"{found:.3f} against {chance} by chance"


def check_learns_nothing_from_shuffled_labels(case: Case, folder: Path) -> None:
    found, chance = planted(case, shuffled=True)
    assert abs(found - chance) < 0.1, f"{found:.3f} against {chance} by chance"


CHECKS: dict[str, Callable[[Case, Path], None]] = {
    name.removeprefix("check_").replace("_", " "): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
