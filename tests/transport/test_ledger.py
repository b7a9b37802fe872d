"""Every message is counted, and LASER's bytes equal those counted by hand."""

import pytest
import torch

from anyparty.methods.method_registry import method
from anyparty.transport import memory
from anyparty.transport.ledger import Flow, Ledger, MeteredChannel, Tally
from tests import worlds
from tests.worlds import Table, world


def test_the_size_of_a_message_is_that_of_its_tensors():
    ledger = Ledger()

    async def part(net):
        await MeteredChannel(net, ledger).send(
            "a",
            "x",
            {"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.int64), "c": torch.zeros(2, dtype=torch.uint8)},
        )
        await MeteredChannel(net, ledger).send("a", "y", {})

    memory.play({"a": part})
    assert ledger.flows == {Flow("a", "a", "x"): Tally(1, 3 * 4 * 4 + 5 * 8 + 2), Flow("a", "a", "y"): Tally(1, 0)}


def test_a_ledger_is_restored_from_its_rows():
    ledger = Ledger()
    for sender, tag, n in (("b", "up", 10), ("a", "down", 4), ("b", "up", 6)):
        ledger.add(Flow(sender, "x", tag), n)
    assert ledger.rows() == [
        {"sender": "a", "receiver": "x", "tag": "down", "messages": 1, "bytes_sent": 4},
        {"sender": "b", "receiver": "x", "tag": "up", "messages": 2, "bytes_sent": 16},
    ]
    assert Ledger.of(ledger.rows()) == ledger
    assert ledger.flows[Flow("b", "x", "up")] == Tally(2, 16)


class TestLaser:
    """K = 3, H = 5; 24 rows in all patterns of presence: party b has 14 of them, party c 12.

    An epoch sends an embedding and a gradient for each row that a passive party holds: 4 H bytes per row, in each
    direction.  The label holder sends no embedding to itself.
    """

    of = world(N=24)

    def by_tag(self, at):
        return {(row["sender"], row["receiver"], row["tag"]): row for row in at.ledger.rows()}

    def test_an_epoch_sends_one_embedding_and_gradient_per_held_row(self):
        at, held = Table(), self.of.observed.sum(0).tolist()
        assert held == [14, 14, 12]
        worlds.train(method("laser", embedding=5), self.of, epochs=1, batch_size=24, at=at)
        flows = self.by_tag(at)
        for name, rows in zip("bc", held[1:], strict=True):
            for way in ((name, "a", "embedding"), ("a", name, "gradient")):
                assert flows[way]["bytes_sent"] == rows * 5 * 4
                assert flows[way]["messages"] == 1
        assert {tag for _, _, tag in flows} == {"hello", "start", "plan", "verdict", "embedding", "gradient"}

    @pytest.mark.parametrize("batch_size", [1, 5, 24])
    def test_bytes_do_not_depend_on_the_batch_size(self, batch_size):
        at = Table()
        worlds.train(method("laser", embedding=5), self.of, epochs=3, batch_size=batch_size, at=at)
        flows = self.by_tag(at)
        assert flows["b", "a", "embedding"]["bytes_sent"] == 3 * 14 * 5 * 4
        if batch_size == 1:
            assert flows["b", "a", "embedding"]["messages"] == 3 * 14  # no message if the party has no row of the batch

    def test_control_messages_have_the_expected_sizes(self):
        """A hello has 32 bytes for one group of settings, and none for checkpoints; a start has two numbers.

        A plan has 24 positions of 8 bytes, none for validation; a verdict has two bytes per epoch and one per party.
        """
        at = Table()
        worlds.train(method("laser", embedding=5), self.of, epochs=3, at=at)
        flows = self.by_tag(at)
        assert flows["b", "a", "hello"]["bytes_sent"] == 32
        assert flows["a", "b", "start"]["bytes_sent"] == 16
        assert flows["a", "b", "plan"]["bytes_sent"] == 24 * 8
        assert flows["a", "b", "verdict"]["bytes_sent"] == 3 * (3 + 3)

    def test_prediction_sends_each_requested_embedding_once(self):
        made, at = method("laser", embedding=5), Table()
        states = worlds.begin(made, self.of)
        worlds.predict(made, self.of, states, asked=("a", "c"), at=at)
        assert at.ledger.rows() == [
            {"sender": "c", "receiver": "a", "tag": "embedding", "messages": 1, "bytes_sent": 12 * 5 * 4}
        ]

    def test_two_label_holders_receive_embeddings_and_send_gradients(self):
        """Embeddings go to both label holders, and gradients come from both; c, itself a host, sends to a alone."""
        of, at = world(N=24, labelers=(0, 2)), Table()
        made = method("laser", embedding=5, hosting="labelers")
        worlds.train(made, of, epochs=1, batch_size=24, at=at)
        sent = {way: row["bytes_sent"] for way, row in self.by_tag(at).items() if way[2] in ("embedding", "gradient")}
        held = dict(zip("abc", [14, 14, 12], strict=True))
        assert sent == {
            (frm, to, tag): 4 * 5 * held[frm if tag == "embedding" else to]
            for frm, to, tag in [
                ("b", "a", "embedding"), ("c", "a", "embedding"), ("a", "c", "embedding"), ("b", "c", "embedding"),
                ("a", "b", "gradient"), ("a", "c", "gradient"), ("c", "a", "gradient"), ("c", "b", "gradient"),
            ]
        }  # fmt: skip
