"""APC-VFL: its single message, every loss against a slow version, gaps among more than two parties, and errors."""

from dataclasses import dataclass, replace

import polars as pl
import pytest
import torch

from anyparty.api.federation import Federation
from anyparty.errors import AlignmentError, ConfigError, MessageError, PartyLost
from anyparty.methods.method_registry import method
from anyparty.methods.one_exchange import distillation
from anyparty.methods.one_exchange.apc import TEACHER, Apc
from anyparty.methods.one_exchange.distillation import DistillationLoss
from anyparty.networks.encoders import MLP, Autoencoder, JointAutoencoder
from anyparty.training.callbacks import Callback
from tests import worlds
from tests.methods.two_party_data import ADAM, pair, sent, split
from tests.worlds import Ends, Table, world

SMALL = {"embedding": 6, "active_embedding": 4, "passive_embedding": 5, "joint_hidden": (7,), "student_hidden": (7,)}
STAGES = ["represent", "share", "joint", "teach", "distil", "classify"]


def train(of, *, parameters=None, **settings):
    made = Apc(**SMALL | (parameters or {}))
    return made, worlds.train(made, of, **{"optimizer": ADAM, "epochs": 2} | settings)


def played(made, of, *until):
    """Return every party's state after one step of each of these stages."""
    states = worlds.begin(made, of, optimizer=ADAM)
    for name in until:
        rows = worlds.stage_of(made, of.seat("a"), name).rows(of.rows["a"]).nonzero().squeeze(1)
        worlds.step(made, of, states, rows, stage=name)
    return states


class TestOneExchange:
    def test_each_passive_party_sends_one_message_and_gets_none_back(self):
        of, at = world(K=4, N=60), Table()
        train(of, at=at, epochs=4, **split(60))
        own = [(sender, to) for sender, to, tag, _ in at.notes if tag == "representation"]
        assert sorted(own) == [("b", "a"), ("c", "a"), ("d", "a")]
        around = {tag for _, _, tag, _ in at.notes} - {"representation"}
        assert around == {"hello", "start", "plan"}  # no message after an epoch, so no party waits for another
        assert sent(at, "plan")[0] == 2 * 3  # the rows to represent and to share; then the passive parties are done

    def test_the_message_holds_each_aligned_row_once(self):
        of, at = world(K=3, N=60), Table()
        train(of, at=at, **split(60))
        for name, k in (("b", 1), ("c", 2)):
            (z,) = [tensors["z"] for sender, _, tag, tensors in at.notes if (sender, tag) == (name, "representation")]
            assert z.shape == (int((of.observed[:, 0] & of.observed[:, k]).sum()), 5)

    def test_half_precision_halves_the_bytes(self):
        sizes = []
        for precision in ("float32", "float16"):
            at = Table()
            train(pair(), at=at, parameters={"precision": precision})
            sizes.append(sent(at, "representation"))
        assert sizes == [(1, 30 * 5 * 4), (1, 30 * 5 * 2)]

    def test_the_active_party_predicts_alone(self):
        of = world(K=3)
        made, trained = train(of)
        states, at = worlds.states_of(trained), Table()
        whole = worlds.predict(made, of, states, at=at)
        assert at.notes == []
        alone = worlds.predict(made, of, states, leaves={"b", "c"})
        assert worlds.same_bits(worlds.answers_of(whole), worlds.answers_of(alone))
        assert torch.equal(whole.answered, of.observed[:, 0])
        assert not whole.took_part[:, 1:].any()
        lacking = (~of.observed[:, 0]).nonzero().squeeze(1).tolist()
        assert {whole.reasons[n] for n in lacking} == {
            "APC-VFL predicts from the block of 'a', which does not have this row"
        }
        without = worlds.predict(made, of, states, asked=("b", "c"))
        assert not without.answered.any()
        assert without.reasons[2] == "APC-VFL predicts from the block of 'a', which was not asked"

    def test_received_representations_are_not_kept(self):
        """The active party keeps only the teacher's outputs for its own rows between stages."""
        _, trained = train(pair())
        assert trained["a"].state.kept.keys() == {"teacher/x", "teacher/position"}
        assert trained["b"].state.kept == {}


class TestAblation:
    def test_the_ablation_sends_only_control_messages(self):
        at = Table()
        _, trained = train(pair(), at=at, parameters={"distillation": 0.0})
        assert {tag for _, _, tag, _ in at.notes} == {"hello", "start"}
        assert [record["stage"] for record in trained["a"].history] == ["distil", "distil", "classify"]
        assert trained["b"].state.modules == {}

    def test_a_negligible_lambda_equals_the_ablation(self):
        """A negligible lambda gives the weights of the ablation, and a real one does not."""
        weights = []
        for value in (0.0, 1e-30, 1.0):
            _, trained = train(pair(), epochs=4, parameters={"distillation": value}, **split(40))
            state = trained["a"].state
            weights.append({name: state.modules["g3"].state_dict()[name] for name in state.modules["g3"].state_dict()})
        assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])
        assert not all(torch.allclose(weights[0][name], weights[2][name], atol=1e-3) for name in weights[0])

    @pytest.mark.parametrize("distillation", [0.0, 1.0])
    def test_encoder_settings_without_effect_are_reported(self, distillation):
        """Local autoencoders follow these settings, but the ablation has no autoencoders."""
        ends = Ends()
        train(pair(), encoder=MLP(hidden=(9,)), watch=ends, parameters={"distillation": distillation})
        assert ("'encoder.hidden' of 'a' did nothing: with APC-VFL" in ends.reasons["distil"]) == (not distillation)

    def test_the_ablation_trains_with_a_single_party(self):
        made, trained = train(world(K=1, N=20), parameters={"distillation": 0.0})
        assert worlds.predict(made, world(K=1, N=20), worlds.states_of(trained)).answered.all()


class TestLosses:
    @pytest.mark.parametrize("distance", ["mse", "mae"])
    @pytest.mark.parametrize("reduction", ["sum", "mean"])
    def test_the_loss_equals_equation_5_row_by_row(self, distance, reduction):
        torch.manual_seed(0)
        net, x, z_A = Autoencoder(MLP(hidden=(5,)), 3, 4, activation="selu"), torch.randn(6, 3), torch.randn(2, 4)
        held, total = torch.tensor([1, 4]), 0.0
        fold = torch.sum if reduction == "sum" else torch.mean
        for i in range(6):
            z, back = net(x[i : i + 1])
            total += fold((x[i] - back[0]) ** 2)
            if i in held:
                off = z_A[held.tolist().index(i)] - z[0]
                total += 0.3 * fold(off**2 if distance == "mse" else off.abs())
        found = DistillationLoss(weight=0.3, distance=distance, reduction=reduction).loss(net, x, z_A, held)
        assert found.item() == pytest.approx(total.item() / 6, rel=1e-5)

    def test_g2_of_two_parties_is_an_autoencoder_of_both_blocks(self):
        net, z = JointAutoencoder([2, 3], (6,), 4, "selu"), torch.randn(5, 5)
        plain = torch.nn.Sequential(net.first, *net.rest, net.decoder)
        assert torch.allclose(net(z, torch.ones(5, 2, dtype=torch.bool)), ((plain(z) - z) ** 2).mean(dim=1))
        assert net.absent is None

    def test_the_joint_loss_with_missing_blocks_equals_a_slow_version(self):
        """An absent party's weights are replaced by its vector, and its columns are not reconstructed."""
        torch.manual_seed(1)
        widths, observed = [2, 3, 1], worlds.all_patterns(14, 3)
        net = JointAutoencoder(widths, (6,), 4, "tanh")
        torch.nn.init.normal_(net.absent)
        z = torch.randn(14, 6)
        places = list(torch.arange(6).split(widths))
        found = net(torch.where(observed[:, net.owner], z, 0.0), observed)
        for n in range(14):
            u, there = net.first.bias.clone(), []
            for k, columns in enumerate(places):
                if observed[n, k]:
                    u = u + net.first.weight[:, columns] @ z[n, columns]
                    there.append(columns)
                else:
                    u = u + net.absent[k]
            off = (net.decoder(net.rest(u)) - z[n])[torch.cat(there)]
            assert found[n].item() == pytest.approx((off**2).mean().item(), rel=1e-4)

    def test_the_first_step_follows_the_mean_squared_error(self):
        """Compute a plain gradient step of party b's g1 on its aligned rows by hand."""
        of, made = world(K=3), Apc(**SMALL)
        states = worlds.begin(made, of)
        net = states["b"].modules["g1"]
        rows = (of.observed[:, 0] & of.observed[:, 1]).nonzero().squeeze(1)
        loss = ((net(of.x["b"][rows])[1] - of.x["b"][rows]) ** 2).mean()
        expected = torch.autograd.grad(loss, list(net.parameters()))
        worlds.step(made, of, states, rows, stage="represent")
        assert all(torch.allclose(p.grad, g, atol=1e-6) for p, g in zip(net.parameters(), expected, strict=True))


class TestMoreParties:
    def test_only_rows_shared_with_a_passive_party_have_a_teacher(self):
        of, made = world(K=3, N=35), Apc(**SMALL)
        states = played(made, of, "represent", "share")
        kept = {name: distillation.kept(states["a"], name).position >= 0 for name in "abc"}
        own = of.observed[:, 0]
        assert torch.equal(kept["b"], own & of.observed[:, 1])
        assert torch.equal(kept["c"], own & of.observed[:, 2])
        assert torch.equal(kept["a"], kept["b"] | kept["c"])
        worlds.step(made, of, states, kept["a"].nonzero().squeeze(1), stage="teach")
        assert torch.equal(distillation.kept(states["a"], TEACHER).position >= 0, kept["a"])

    def test_the_teacher_of_a_row_depends_on_the_parties_that_have_it(self):
        """z_A is g2 of the outputs of the parties' own networks, with a gap for parties that lack the row."""
        of, made = world(K=3, N=35), Apc(**SMALL)
        states = played(made, of, "represent", "share", "joint", "teach")
        teacher = distillation.kept(states["a"], TEACHER)
        g2 = states["a"].modules["g2"]
        for n in range(35):
            there = of.observed[n]
            if not (there[0] and there[1:].any()):
                continue
            z = [
                distillation.embed(states[name], "g1", of.x[name][n : n + 1]) * there[k] for k, name in enumerate("abc")
            ]
            joint = g2.encode(torch.cat(z, dim=1), there.unsqueeze(0))
            assert torch.allclose(teacher.take(torch.tensor([n]))[0], joint, atol=1e-5)

    def test_a_party_that_shares_no_row_sends_nothing(self):
        observed = worlds.all_patterns(24, 3)
        observed[:, 2] &= ~observed[:, 0]
        observed[0] = torch.tensor([True, True, False])
        at = Table()
        train(world(observed=observed), at=at)
        assert [sender for sender, _, tag, _ in at.notes if tag == "representation"] == ["b"]

    def test_a_party_lost_before_it_sends_counts_as_absent(self):
        of, made = world(K=3), Apc(**SMALL)
        rows = distillation.aligned(of.rows["a"], of.roster).nonzero().squeeze(1)
        states = played(made, of, "represent")
        worlds.step(made, of, states, rows, stage="share", leaves={"b"})
        assert distillation.kept(states["a"], "b") is None
        assert distillation.kept(states["a"], "c") is not None
        worlds.step(made, of, states, rows, stage="joint")
        with pytest.raises(PartyLost, match="party 'b' is gone: APC-VFL has no other party to learn from"):
            worlds.step(made, of, played(made, of, "represent"), rows, stage="share", leaves={"b", "c"})

    @pytest.mark.parametrize("reads", ["own", "joint", "either"])
    def test_rows_of_lost_parties_have_no_teacher(self, reads):
        of = world(observed=torch.tensor([[1, 1, 0], [1, 0, 1]] * 10, dtype=torch.bool))
        made = Apc(**SMALL, classify_on=reads)
        states = played(made, of, "represent")
        worlds.step(made, of, states, of.places(), stage="share", leaves={"c"})
        _, there, came = made.sharing.shared(states["a"], of.places())
        assert torch.equal(came, of.observed[:, 1].nonzero().squeeze(1))
        assert (there == torch.tensor([True, True, False])).all()
        assert worlds.step(made, of, states, torch.arange(1, 20, 2), stage="joint") is None
        worlds.step(made, of, states, of.places(), stage="joint")
        worlds.step(made, of, states, of.places(), stage="teach")
        assert torch.equal(distillation.kept(states["a"], TEACHER).position >= 0, of.observed[:, 1])

    def test_a_joint_classifier_without_labelled_rows_is_refused(self):
        lost = torch.tensor([[1, 1, 0], [1, 0, 1]] * 10, dtype=torch.bool)
        of, made = world(observed=lost, labeled=lost[:, 2]), Apc(**SMALL, classify_on="joint")
        states = played(made, of, "represent")
        worlds.step(made, of, states, of.places(), stage="share", leaves={"c"})
        for stage in ("joint", "teach"):
            worlds.step(made, of, states, of.places(), stage=stage)
        with pytest.raises(AlignmentError, match="no labelled row is left that the active and a passive party have"):
            worlds.step(made, of, states, of.places(), stage="classify")


class TestDistillation:
    @pytest.mark.slow
    def test_distillation_improves_rows_that_are_not_shared(self):
        """b has the square of a's first column; on rows that b lacks, g3 is closer to z_A with lambda than without."""
        of = pair(N=300, aligned=200, d=2)
        of.x["b"][:, 0] = of.x["a"][:, 0] ** 2
        of.x["b"][:, 1] = of.x["a"][:, 1].abs()
        held = of.rows["b"].block.position[:200]
        of.rows["b"].block.x[held] = of.x["b"][:200]
        missed = {}
        for value in (1e-9, 1.0):
            _, trained = train(of, epochs=40, batch_size=32, parameters={"distillation": value, "embedding": 8})
            states = worlds.states_of(trained)
            z = torch.cat([distillation.embed(states[name], "g1", of.x[name]) for name in "ab"], dim=1)
            states["a"].modules["g2"].train(False)
            z_A = states["a"].modules["g2"].encode(z, torch.ones(300, 2, dtype=torch.bool))[200:].detach()
            off = distillation.embed(states["a"], "g3", of.x["a"][200:]) - z_A
            missed[value] = float((off**2).sum() / ((z_A - z_A.mean(dim=0)) ** 2).sum())
        assert missed[1.0] < 0.3
        assert missed[1e-9] > 1


class TestFullAlignment:
    JOINT = {"classify_on": "joint"}

    def test_joint_prediction_receives_representations(self):
        of, at = world(K=3), Table()
        made, trained = train(of, parameters=self.JOINT)
        answered = worlds.predict(made, of, worlds.states_of(trained), at=at)
        assert [tag for _, _, tag, _ in at.notes] == ["representation"] * 2
        assert torch.equal(answered.answered, distillation.aligned(of.rows["a"], of.roster))
        assert torch.equal(answered.took_part[answered.answered], of.observed[answered.answered])
        assert "a passive party have" in answered.reasons[0]

    def test_a_head_stops_early_and_keeps_its_best_epoch(self):
        of, at = world(K=3, N=60, shuffled=True), Table()
        settings = {"epochs": 40, "patience": 3, "keep": "best", "optimizer": replace(ADAM, lr=0.1), **split(60)}
        made, trained = train(of, at=at, parameters=self.JOINT | {"classifier": "head"}, **settings)
        history = [record for record in trained["a"].history if record["stage"] == "classify"]
        losses = [record["validation"]["loss"] for record in history]
        best = min(range(len(losses)), key=losses.__getitem__)
        assert len(losses) == best + 1 + 3 < 40
        (stage,) = (each for each in made.stages(of.seat("a")) if each.name == "classify")
        rows = split(60)["validation"]
        kept = stage.loss(trained["a"].state, of.rows["a"], worlds.batch_of(rows))
        assert kept == pytest.approx(losses[best], rel=1e-6)
        assert sent(at, "plan")[0] == 2 * 2  # no other party is asked in this stage

    def test_a_silent_party_counts_as_absent(self):
        of = world(K=3)
        made, trained = train(of, parameters=self.JOINT)
        answered = worlds.predict(made, of, worlds.states_of(trained), leaves={"b"})
        assert answered.silent == ("b",)
        assert torch.equal(answered.answered, of.observed[:, 0] & of.observed[:, 2])
        assert not answered.took_part[:, 1].any()

    def test_joint_prediction_uses_the_signal_of_the_passive_party(self):
        of = pair(N=400, aligned=400, d=2, signal=1, classes=2)
        wide = {"embedding": 16, "joint_hidden": (16,), **self.JOINT}
        test = torch.arange(400) >= 300
        made, trained = train(of, parameters=wide, epochs=30, batch_size=32, training=~test)
        scores = worlds.predict(made, of, worlds.states_of(trained), test.nonzero().squeeze(1)).scores
        assert (scores.argmax(dim=1) == of.y[test]).float().mean() > 0.85


@dataclass
class Stops(Callback):
    """Interrupts a run at the beginning of a stage, or after one of its epochs."""

    stage: str
    epoch: int

    def on_stage_begin(self, stage, epochs, rows, first_epoch):
        if (stage, 0) == (self.stage, self.epoch):
            raise KeyboardInterrupt

    def on_epoch_end(self, record):
        if (record["stage"], record["epoch"]) == (self.stage, self.epoch):
            raise KeyboardInterrupt


class TestResuming:
    @pytest.mark.parametrize(
        ("stage", "epoch", "parameters"),
        [("represent", 3, {}), ("share", 0, {}), ("share", 1, {"classify_on": "either"}), ("joint", 0, {}),
         ("joint", 4, {}), ("teach", 1, {}), ("distil", 2, {}), ("distil", 5, {"classifier": "head"}),
         ("classify", 0, {}), ("classify", 0, {"classifier": "head"}), ("classify", 0, {"classify_on": "either"})],
    )  # fmt: skip
    def test_a_run_resumed_in_any_stage_ends_with_the_same_weights(self, stage, epoch, parameters, tmp_path):
        of = world(K=3, N=50)
        settings = {"epochs": 5, "patience": 2, "keep": "best", "checkpoint_every": 2, **split(50)}
        _, whole = train(of, parameters=parameters, **settings)
        with pytest.raises(KeyboardInterrupt):
            train(of, parameters=parameters, folder=tmp_path, watch=Stops(stage, epoch), **settings)
        at = Table()
        _, resumed = train(of, parameters=parameters, folder=tmp_path, resume=True, at=at, **settings)
        assert worlds.same_bits(*(worlds.weights(worlds.states_of(each)) for each in (whole, resumed)))
        strip = [[{**record, "seconds": 0} for record in each["a"].history] for each in (whole, resumed)]
        assert strip[0] == strip[1]
        if stage in {"teach", "distil", "classify"}:
            assert sent(at, "representation", "plan") == (0, 0)  # the other parties had finished their part


class TestRefusals:
    def test_training_without_an_aligned_row_is_refused(self):
        of = world(K=2, observed=torch.eye(2, dtype=torch.bool).repeat(6, 1))
        with pytest.raises(AlignmentError, match="no row is aligned: 'a' shares no row with a passive party"):
            train(of)

    def test_training_without_a_passive_party_is_refused(self):
        with pytest.raises(ConfigError, match="needs a passive party with columns"):
            train(world(K=1))
        with pytest.raises(ConfigError, match="with distillation = 0 and classify_on = 'own' the active party trains"):
            train(world(K=1), parameters={"distillation": 0.0, "classify_on": "either"})

    @pytest.mark.filterwarnings("ignore:One or more samples have no neighbors")
    def test_a_row_without_a_prediction_has_a_reason(self):
        """A radius without neighbours gives no number: the row is known, but its answer used no party."""
        of = pair(kind="regression")
        made, trained = train(
            of, parameters={"classifier": "RadiusNeighborsRegressor", "classifier_settings": {"radius": 1e-9}}
        )
        states = worlds.states_of(trained)
        states["a"].modules["classifier"].rows += 5
        states["a"].modules["classifier"].made = None
        answered = worlds.predict(made, of, states)
        assert not answered.answered.any()
        assert not answered.took_part.any()
        held = of.observed[:, 0].nonzero().squeeze(1).tolist()
        assert {answered.reasons[n] for n in held} == {"the classifier gave no number for this row"}

    def test_an_active_party_without_columns_is_refused(self):
        with pytest.raises(ConfigError, match=r"active party's own columns, and 'server' has none"):
            train(world(K=2, server=True))

    @pytest.mark.parametrize(
        ("z", "said"),
        [(torch.zeros(30, 4), r"should be torch.float32 \[30, 5\], got torch.float32 \[30, 4\]"),
         (torch.zeros(29, 5), r"should be torch.float32 \[30, 5\]"),
         (torch.full((30, 5), torch.nan), "holds NaN or infinity")],
    )  # fmt: skip
    def test_an_invalid_representation_is_refused_with_its_sender(self, z, said):
        of, made = pair(), Apc(**SMALL)
        states = worlds.begin(made, of)
        stage = worlds.stage_of(made, of.seat("a"), "share")
        batch = worlds.batch_of(torch.arange(30), stage="share")

        async def honest(net):
            return await stage.step(net, states["a"], of.rows["a"], batch)

        async def wrong(net):
            await net.send("a", "representation", {"z": z})

        with pytest.raises(MessageError, match=f"message 'representation' from 'b' to 'a': 'z' {said}"):
            Table().play(of.roster, made.can.messages, {"a": honest, "b": wrong})

    def test_an_encoder_of_the_wrong_width_is_refused(self):
        with pytest.raises(ConfigError, match=r"party 'a': its encoder should give \[2, 4\], it gives \[2, 9\]"):
            train(pair(), encoder=lambda inputs, _: torch.nn.Linear(inputs, 9))

    @pytest.mark.parametrize(
        ("parameters", "said"),
        [({"classifier": "LogisticRegresion"}, "no classifier 'LogisticRegresion'; did you mean 'LogisticRegression'"),
         ({"classifier": "logistic", "classifier_settings": {"c": 1}}, "'logistic' cannot be made with {'c': 1}"),
         ({"classifier": "ridge"}, "no classifier 'ridge'")],
    )  # fmt: skip
    def test_an_unknown_classifier_is_refused(self, parameters, said):
        with pytest.raises(ConfigError, match=said):
            train(pair(), parameters=parameters)

    def test_labels_of_a_single_class_are_refused(self):
        of = pair()
        of.rows["a"] = replace(of.rows["a"], y=torch.zeros(40, dtype=torch.int64))
        with pytest.raises(AlignmentError, match="40 rows are all of one class, 'class 0'"):
            train(of)


def tables(n=60):
    ids = [f"n{i}" for i in range(n)]
    x = [i % 7 - 3 for i in range(n)]
    bank = pl.DataFrame({"id": ids, "income": x, "same": [1] * n, "bad": ["yes" if v > 0 else "no" for v in x]})
    return {"bank": bank, "shop": pl.DataFrame({"id": ids[20:], "spent": x[20:]}).sample(fraction=1, seed=1)}


class TestTables:
    """Tables with one column at the passive party, a constant column at the active one, and shuffled rows."""

    @pytest.mark.parametrize("name", ["apc", "vfedtrans"])
    def test_a_saved_model_predicts_without_the_passive_party(self, name, tmp_path):
        federation = Federation.from_tables(tables(), label="bad")
        model = federation.train(name, parameters={"embedding": 8}, epochs=30, batch_size=16, folder=tmp_path)
        assert model.evaluate().overall["accuracy"] > 0.8
        loaded = type(model).load(tmp_path)
        answered = loaded.predict({"bank": tables()["bank"].drop("bad")})
        assert answered.answered.all()
        assert torch.equal(answered.scores, model.predict({"bank": tables()["bank"].drop("bad")}).scores)

    def test_settings_create_the_method(self):
        made = method("apc", joint_hidden=(3,), classifier_settings={"C": 2.0})
        assert made == Apc(joint_hidden=(3,), classifier_settings={"C": 2.0})
