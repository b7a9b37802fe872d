"""FedSVD against numpy's SVD, the effect of masks, the roles of parties, and VFedTrans as a whole."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from anyparty.errors import AlignmentError, ConfigError, MessageError
from anyparty.methods.one_exchange import distillation, fedsvd
from anyparty.methods.one_exchange.fedsvd import Roles, RowMask
from anyparty.methods.one_exchange.vfedtrans import VFedTrans
from anyparty.networks.encoders import MLP
from anyparty.transport import memory
from tests import worlds
from tests.methods.two_party_data import ADAM, helped, pair, sent, split
from tests.worlds import Ends, Table, Wiretap, world

ALONE = Roles(task="t", data="d", server="t", keys="d")
APART = Roles(task="t", data="d", server="s", keys="g")


def decompose(x_t, x_d, roles, *, rank=100, seed=1, notes=None):
    """Run all roles; return the task party's result."""
    held = {"t": x_t, "d": x_d}
    parts = {
        name: partial(_part, roles=roles, x=held.get(name), rank=rank, secret=bytes([seed, ord(name)] * 16))
        for name in {roles.task, roles.data, roles.server, roles.keys}
    }
    return memory.play(parts, lambda channel: Wiretap(channel, [] if notes is None else notes))["t"]


async def _part(net, *, roles, x, rank, secret):
    return await fedsvd.decompose(net, roles, x, rank, secret)


def key_of(number):
    return torch.full((fedsvd.KEY,), number, dtype=torch.uint8)


def blocks(m=300, n_t=3, n_d=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(n_t + n_d, n_t + n_d, generator=generator)  # correlated columns
    x = torch.randn(m, n_t + n_d, generator=generator) @ mixed
    return x[:, :n_t], x[:, n_t:]


def plain(x_t, x_d):
    """Return numpy's left singular vectors, with the same choice of signs."""
    u = np.linalg.svd(torch.cat([x_t, x_d], dim=1).double().numpy(), full_matrices=False)[0]
    return u * np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])])


class TestLossless:
    @pytest.mark.parametrize(
        ("m", "n_t", "n_d", "roles"),
        [(300, 3, 5, ALONE), (300, 3, 5, APART), (256, 1, 1, ALONE), (512, 4, 2, APART), (10, 2, 3, ALONE),
         (4, 3, 5, APART), (1, 2, 2, ALONE)],
    )  # fmt: skip
    def test_equal_to_the_plain_decomposition(self, m, n_t, n_d, roles):
        x_t, x_d = blocks(m, n_t, n_d)
        u = decompose(x_t, x_d, roles)
        assert u.shape == (m, min(m, n_t + n_d))
        assert np.abs(u.numpy() - plain(x_t, x_d)).max() < 1e-5

    def test_the_first_vectors_alone(self):
        x_t, x_d = blocks()
        u = decompose(x_t, x_d, APART, rank=3)
        assert np.abs(u.numpy() - plain(x_t, x_d)[:, :3]).max() < 1e-5

    def test_other_masks_the_same_vectors(self):
        one, two = (decompose(*blocks(), APART, seed=seed) for seed in (1, 2))
        assert not torch.equal(one, two)
        assert torch.allclose(one, two, atol=1e-5)

    def test_without_common_rows_there_are_none(self):
        assert decompose(torch.zeros(0, 3), torch.zeros(0, 2), APART).shape == (0, 0)

    def test_columns_that_add_nothing_add_no_vector(self):
        """Vectors of zero singular values would depend on the masks, and so on the seed."""
        x_t, x_d = blocks()
        poor = torch.cat([x_d, x_t[:, :1], torch.zeros(len(x_d), 1)], dim=1)
        one, two = (decompose(x_t, poor, APART, seed=seed) for seed in (1, 2))
        assert one.shape[1] == x_t.shape[1] + x_d.shape[1]
        assert torch.allclose(one, two, atol=1e-6)
        assert decompose(0 * x_t, 0 * x_d, ALONE).shape == (len(x_t), 0)


class TestMasks:
    @pytest.mark.parametrize("m", [1, 7, 256, 257, 600])
    def test_the_row_mask_is_orthogonal_and_block_diagonal(self, m):
        mask = RowMask.of(m, key_of(3))
        whole = mask.apply(torch.eye(m, dtype=torch.float64))
        assert torch.allclose(whole @ whole.T, torch.eye(m, dtype=torch.float64), atol=1e-12)
        assert torch.allclose(mask.undo(whole), torch.eye(m, dtype=torch.float64), atol=1e-12)
        far = (torch.arange(m).unsqueeze(1) // 256) != (torch.arange(m) // 256)
        assert not whole[far].any()

    def test_nobody_holds_a_square_of_the_rows(self):
        """For 20,000 rows, the mask is 80 blocks, 42 MB, instead of 3.2 GB; only its key of 32 bytes is sent."""
        mask = RowMask.of(20000, key_of(0))
        assert sum(part.numel() * 8 for part in (mask.whole, mask.last)) < 42e6

    def test_orthogonal_matrices_are_drawn_evenly(self):
        """The trace of a Haar-distributed orthogonal matrix has mean 0 and variance 1 (Diaconis, Shahshahani 1994)."""
        traces = fedsvd.orthogonal(4000, 4, torch.Generator().manual_seed(0)).diagonal(dim1=1, dim2=2).sum(dim=1)
        assert abs(traces.mean()) < 0.06
        assert traces.var() == pytest.approx(1, abs=0.08)

    def test_all_bytes_of_a_key_count(self):
        """Torch's own seed has 32 bits, which can be searched in an hour; here, keys agree in their first 31 bytes."""
        one, other = key_of(3), key_of(3)
        other[-1] = 4
        assert not torch.equal(RowMask.of(300, one).whole, RowMask.of(300, other).whole)
        keys = fedsvd.keys_for({"t": 2, "d": 3}, bytes(32))
        assert not torch.equal(keys["t"]["p"], keys["t"]["r"])
        drawn = fedsvd.orthogonal(1, 5, fedsvd.drawn_with(bytes(keys["t"]["p"])))[0]
        assert not torch.equal(drawn[:2], keys["t"]["q"])

    @pytest.mark.parametrize("n", [-1, 0, 10**6])
    def test_a_width_that_no_table_has_is_refused(self, n):
        async def lies(net):
            await net.send("t", "width", {"n": torch.tensor([n])})

        parts = {"t": partial(_part, roles=Roles(task="t", data="d", server="t", keys="t"), x=blocks()[0], rank=2,
                              secret=bytes(32)), "d": lies}  # fmt: skip
        with pytest.raises(MessageError, match=r"message 'width' from 'd': expected between 1 and 20,000 columns"):
            memory.play(parts)

    @pytest.mark.parametrize("roles", [ALONE, APART])
    def test_no_message_holds_a_column(self, roles):
        """No message contains a cell, and no tensor's column is close to a multiple of a raw column."""
        notes, (x_t, x_d) = [], blocks()
        decompose(x_t, x_d, roles, notes=notes)
        raw = torch.cat([x_t, x_d], dim=1).double()
        assert {tag for _, _, tag, _ in notes} >= {"width", "key", "masked"}
        seen = 0
        for _, _, _, tensors in notes:
            for tensor in tensors.values():
                if tensor.dtype.is_floating_point:
                    assert not torch.isin(tensor.double(), raw).any()
                    assert not torch.isin(tensor.float(), raw.float()).any()
                if tensor.dim() == 2 and len(tensor) == len(raw):
                    both = torch.corrcoef(torch.cat([raw, tensor.double()], dim=1).T)
                    assert both[: raw.shape[1], raw.shape[1] :].abs().max() < 0.25
                    seen += 1
        assert seen == (1 if roles is ALONE else 3)

    def test_what_a_server_of_its_own_sees_of_one_party_is_noise(self):
        """A masked block alone has other singular values; only the sum of both has the joint ones."""
        notes, (x_t, x_d) = [], blocks()
        decompose(x_t, x_d, APART, notes=notes)
        masked = [tensors["x"] for _, to, tag, tensors in notes if (to, tag) == ("s", "masked")]
        values = [torch.linalg.svdvals(part) for part in (*masked, masked[0] + masked[1])]
        joint = torch.linalg.svdvals(torch.cat([x_t, x_d], dim=1).double())
        assert values[0].min() > 5 * joint.max()
        assert values[1].min() > 5 * joint.max()
        assert torch.allclose(values[2], joint, rtol=1e-9)

    def test_the_server_gets_no_key_and_the_key_generator_no_data(self):
        notes = []
        decompose(*blocks(), APART, notes=notes)
        assert sorted((sender, to, tag) for sender, to, tag, _ in notes) == [
            ("d", "g", "width"), ("d", "s", "masked"), ("g", "d", "key"), ("g", "t", "key"),
            ("s", "t", "factor"), ("t", "g", "width"), ("t", "s", "masked"),
        ]  # fmt: skip

    def test_where_the_task_party_is_the_server_it_sees_rows_up_to_a_rotation(self):
        """As declared, it sees all distances between the data party's rows."""
        notes, (x_t, x_d) = [], blocks()
        decompose(x_t, x_d, ALONE, notes=notes)
        said = {tag: tensors for sender, to, tag, tensors in notes if (sender, to) == ("d", "t")}
        noise = torch.randn(300, 8, generator=fedsvd.drawn_with(bytes(said["key"]["r"])), dtype=torch.float64)
        seen = RowMask.of(300, said["key"]["p"]).undo(said["masked"]["x"] + fedsvd.NOISE * noise)
        assert torch.allclose(seen @ seen.T, (x_d @ x_d.T).double(), atol=1e-3)


def test_matrices_that_do_not_fit_together_are_refused():
    with pytest.raises(MessageError, match=r"'masked' to 's': 't' sent \[300, 8\], 'd' \[299, 8\]"):
        decompose(blocks()[0], blocks()[1][:299], APART)


@pytest.mark.slow
def test_ten_thousand_rows_of_thirty_columns():
    x_t, x_d = blocks(10000, 5, 25)
    u = decompose(x_t, x_d, APART)
    assert np.abs(u.numpy() - plain(x_t, x_d)).max() < 1e-5


SMALL = {"embedding": 6, "student_hidden": (7,)}
NOTHING = (
    "'encoder.hidden', 'encoder.activation' of 'a' did nothing: with VFedTrans the method's student_hidden and "
    "activation define its networks"
)


def train(of, *, parameters=None, **settings):
    made = VFedTrans(**SMALL | (parameters or {}))
    return made, worlds.train(made, of, **{"optimizer": ADAM, "epochs": 2} | settings)


class TestMethod:
    def test_the_students_are_taught_the_joint_vectors_of_each_pair(self):
        of, made = world(K=3, N=70), VFedTrans(**SMALL, masks="seeded")
        states = worlds.begin(made, of, optimizer=ADAM)
        rows = distillation.aligned(of.rows["a"], of.roster).nonzero().squeeze(1)
        worlds.step(made, of, states, rows, stage="svd")
        for name, k in (("b", 1), ("c", 2)):
            both = (of.observed[:, 0] & of.observed[:, k]).nonzero().squeeze(1)
            taught, held = distillation.kept(states["a"], name).take(torch.arange(70))
            assert torch.equal(held, both)
            u = plain(of.x["a"][both], of.x[name][both])
            assert np.abs(taught.numpy() - u * len(both) ** 0.5).max() < 1e-4

    def test_with_parties_for_the_roles(self):
        """Separate key generator and server give the same model up to rounding, and see only what is declared."""
        weights = []
        for of, roles in ((pair(), {}), (helped(pair()), {"server": "s", "key_generator": "g"})):
            at = Table()
            made, trained = train(of, parameters=roles, at=at, epochs=4, **split(40))
            weights.append(worlds.weights({"a": worlds.states_of(trained)["a"]}))
            answered = worlds.predict(made, of, worlds.states_of(trained), at=Table())
            assert answered.answered.all()
        assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-4) for name in weights[0])
        assert sent(at, "width", "key", "masked", "factor")[0] == 7
        assert {to for _, to, tag, _ in at.notes if tag == "key"} == {"a", "b"}
        assert {to for _, to, tag, _ in at.notes if tag == "masked"} == {"s"}

    def test_secret_masks_need_no_seed_of_the_run(self):
        keys = []
        for _ in range(2):
            at = Table()
            train(pair(), at=at)
            keys += [tensors["p"] for _, _, tag, tensors in at.notes if tag == "key"]
        assert not torch.equal(*keys)

    def test_lambda_zero_learns_nothing_of_the_others(self):
        """The student does not depend on the partner's columns; with lambda it does."""
        for value, same in ((0.0, True), (1.0, False)):
            students = []
            for scale in (1.0, -3.0):
                of = pair()
                of.rows["b"].block.x[:, 0] *= scale
                of.rows["b"].block.x[:, 1] += of.rows["b"].block.x[:, 0] ** 2 * scale
                _, trained = train(of, parameters={"distillation": value}, epochs=4)
                students.append(worlds.weights({"a": trained["a"].state}))
            assert all(torch.equal(students[0][n], students[1][n]) for n in students[0]) == same

    def test_every_student_has_first_weights_of_its_own(self):
        modules = worlds.begin(VFedTrans(**SMALL), world(K=3))["a"].modules
        one, two = (modules[f"student{k}"].state_dict() for k in range(2))
        assert not any(torch.equal(one[name], two[name]) for name in one if name.endswith("weight"))

    def test_what_the_classifier_reads(self):
        of = world(K=3)
        for append, width in ((True, 3 + 2 * 6), (False, 2 * 6)):
            made, trained = train(of, parameters={"append": append})
            assert made.features(trained["a"].state, of.x["a"]).shape == (24, width)
            assert all(not trained[name].state.modules for name in "bc")

    @pytest.mark.parametrize(
        ("encoder", "idle"),
        [
            (MLP(), ""),
            (MLP(dropout=0.5, norm=True), ""),
            (MLP(hidden=(9,), activation="tanh"), NOTHING),
        ],
    )
    def test_settings_of_an_encoder_that_no_network_follows_are_named(self, encoder, idle):
        ends = Ends()
        train(pair(), encoder=encoder, watch=ends)
        assert ends.reasons["distil"] == "; ".join(filter(None, ("all epochs done", idle)))

    def test_students_drop_out_and_normalise_as_the_party_s_encoder_does(self):
        modules = worlds.begin(VFedTrans(**SMALL), pair(), encoder=MLP(dropout=0.5, norm=True))["a"].modules
        assert [type(layer).__name__ for layer in modules["student0"].encoder] == [
            "Linear", "LayerNorm", "Sigmoid", "RowDropout", "Linear",
        ]  # fmt: skip

    def test_no_aligned_row(self):
        of = world(K=2, observed=torch.eye(2, dtype=torch.bool).repeat(6, 1))
        with pytest.raises(
            AlignmentError, match="VFedTrans: no row is aligned: 'a' shares no row with a passive party"
        ):
            train(of)

    @pytest.mark.parametrize(
        ("roles", "said"),
        [
            ({"server": "s"}, "must be two parties, or neither named"),
            ({"server": "s", "key_generator": "s"}, "could remove the masks"),
            ({"server": "s", "key_generator": "q"}, "key_generator = 'q' is not a party"),
            ({"server": "s", "key_generator": "b"}, "key_generator = 'b' holds columns or labels"),
            ({"server": "a", "key_generator": "g"}, "server = 'a' holds columns or labels"),
        ],
    )
    def test_roles_that_cannot_be(self, roles, said):
        with pytest.raises(ConfigError, match=said):
            train(helped(pair()), parameters=roles)

    @pytest.mark.parametrize("role", ["server", "key_generator"])
    def test_who_holds_labels_alone_has_no_role(self, role):
        roles, of = {"server": "s", "key_generator": "g"}, helped(pair())
        parties = tuple(replace(p, labels=p.labels or p.name == roles[role]) for p in of.roster.parties)
        with pytest.raises(ConfigError, match=f"{role} = '{roles[role]}' holds columns or labels"):
            worlds.begin(VFedTrans(**SMALL | roles), replace(of, roster=replace(of.roster, parties=parties)))
