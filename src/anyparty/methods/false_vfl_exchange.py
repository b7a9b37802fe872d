"""FALSE-VFL between parties: what each sends of a batch, and what comes back.

    party -> active    embedding    mean and variance of z, of the rows that it has
    active -> party    samples      z_l
    party -> active    likelihood   log p(x^k | z_l), and in training its slope by z_l
    active -> party    gradient     of the loss by the embedding; while the decoder learns, by the log-likelihoods too

Raw blocks and reconstructions stay at home.  Two round trips a batch and not three: a decoder takes samples one by
one, so the slope of log p(x^k | z_l) by z_l is known before the loss is, and need not be asked for afterwards.

A party that is lost on the way is missed, not replaced: its factor is left out of the weights.

Letters and symbols as in ``false_vfl_nets``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyparty.blocks.blocks import Rows
from anyparty.errors import ConfigError, Diverged, PartyLost
from anyparty.methods.exchange import Gathered, Wanted, gather, moment
from anyparty.methods.false_vfl_nets import Draws, FeatureSide, LabelSide
from anyparty.methods.method import Batch, Seat
from anyparty.terms import Channel, Expect, finite

FALLEN, MANY = 1.1, 0.5  # a deviation counts as fallen below 1.1 floors; said when more than half are


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One party's turn in a batch.

    Attributes:
        net: its way to the others.
        seat: who it is.
        rows: what it knows of the rows.
        batch: those worked on, B of them.
        L: importance samples.
        D: width of z.
        T: width of h.
        asked: the parties whose blocks may take part.
        mnar: whether parties answer for rows that they lack, too.
        follows: whether encoders learn, so that slopes by z are wanted.
        common: whether all rows share the numbers that samples are drawn with (prediction).

    """

    net: Channel
    seat: Seat
    rows: Rows
    batch: Batch
    L: int
    D: int
    T: int
    asked: Sequence[str]
    mnar: bool
    follows: bool = False
    common: bool = False

    def noise(self, name: str, rows: int, width: int) -> Tensor:
        """Return standard normal numbers of this turn's stream ``name``: [L, rows, width]."""
        drawn = 1 if self.common else rows
        generator = self.batch.seeds.torch("prediction", name) if self.common else self.batch.generator(name)
        return torch.randn(self.L, drawn, width, generator=generator).to(self.seat.device).expand(-1, rows, -1)

    # A party with columns

    def encode(self, side: FeatureSide) -> Home | None:
        """Encode the party's rows; ``None`` if it has no part in this batch.

        Raises:
            Diverged: its embeddings are no longer numbers.
            ConfigError: its encoder answers in another shape.
        """
        if self.seat.me not in self.asked:
            return None
        assert self.rows.block is not None
        x, held = self.rows.block.take(self.batch.rows)
        if not len(held):
            return Home(side, x, held, x.new_zeros(0, 2 * self.D)) if self.mnar else None
        with torch.set_grad_enabled(self.follows), self._drawing("encoder draws"):
            views = side.encode(x)
        if views.shape != (len(held), 2 * self.D):
            raise ConfigError(f"party {self.seat.me!r}: its encoder should give {[len(held), 2 * self.D]}, mean and "
                              f"deviation side by side; it gives {list(views.shape)}")  # fmt: skip
        self.finite(views, f"party {self.seat.me!r}: its embeddings are")
        return Home(side, x, held, views)

    def decode(self, home: Home, z: Tensor) -> dict[str, Tensor]:
        """Return how well samples of z explain the party's block, and the slope of that by z if it is wanted.

        Raises:
            Diverged: they are no longer numbers.
        """
        if self.follows and self.batch.moment[-1] == 0:  # once an epoch
            self._look_at_floor(home.side, z[:1].detach())
        z = z.requires_grad_(self.follows)
        lacking = len(self.batch.rows) - len(home.held)
        noise = self.noise(f"block of {self.seat.me}", lacking, home.x.shape[1]) if self.mnar else None
        with torch.set_grad_enabled(self.follows), self._drawing("decoder draws"):
            home.log_p = home.side.log_likelihood(home.x, home.held, z, noise)
        self.finite(home.log_p, f"party {self.seat.me!r}: log-likelihoods of its block are")
        if not self.follows:
            return {"log_p": home.log_p}
        (slope,) = torch.autograd.grad(home.log_p.sum(), z, retain_graph=True)
        self.finite(slope, f"party {self.seat.me!r}: slopes of its log-likelihoods are")
        return {"log_p": home.log_p.detach(), "slope": slope}

    def answers_for(self, home: Home) -> int:
        """Return how many rows of the batch the party answers for: its own, or under MNAR all."""
        return len(self.batch.rows) if self.mnar else len(home.held)

    async def answer(self, home: Home) -> None:
        """Say how one sees one's rows, and how well samples explain them, at a party that does not lead."""
        active = self.seat.roster.active
        if len(home.held):
            await self.net.send(active, "embedding", {"h": home.views.detach()})
        expect = {"z": Expect((self.L, self.answers_for(home), self.D))}
        z = (await self.net.recv(active, "samples", expect))["z"].to(self.seat.device)
        await self.net.send(active, "likelihood", self.decode(home, z))

    # The active party

    async def weigh(self, side: LabelSide, home: Home | None, *, learns: bool = False) -> Weighed:
        """Gather the parties' views, draw samples, send them, and weigh them by what comes back.

        Raises:
            Diverged: the samples are no longer numbers.
        """
        wanted = Wanted(asked=self.asked, read=self.seat.roster.blocks, width=(2 * self.D,))
        mine = (home.held, home.views) if home is not None and len(home.held) else None
        there = await gather(self.net, self.seat, self.rows, self.batch, wanted, mine)
        B, K = there.observed.shape
        nothing = torch.zeros(B, K, 2 * self.D, device=self.seat.device)
        views = (there.scatter(self.seat.roster) if there.parts else nothing).requires_grad_(self.follows)
        noise = self.noise("z", B, self.D), self.noise("h", B, self.T)
        with torch.set_grad_enabled(learns):
            draws = side.draw(views, there.observed, noise)
        self.finite(draws.z, "the samples of z are")
        log_p, slope = await self._likelihoods(there, draws.z.detach(), home)
        with torch.set_grad_enabled(learns):
            linked = log_p.requires_grad_(self.follows)
            if slope is not None:  # adds nothing but the way back
                linked = linked + torch.einsum("lbd,lbd->lb", draws.z - draws.z.detach(), slope)
            log_w = draws.log_ratio + linked
        return Weighed(there, views, draws, log_p, log_w)

    async def _likelihoods(self, there: Gathered, z: Tensor, home: Home | None) -> tuple[Tensor, Tensor | None]:
        """Return the sum of the parties' log-likelihoods [L, B], and of their slopes by z [L, B, D]."""
        places = self._places(there)
        of_party = {name: z.clone() if len(own) == z.shape[1] else z[:, own] for name, own in places.items()}
        for name in places:
            if name != self.seat.me:
                await self.net.send(name, "samples", {"z": of_party[name]})
        log_p, slope = z.new_zeros(z.shape[:2]), torch.zeros_like(z) if self.follows else None
        for name, own in places.items():
            if name == self.seat.me:
                assert home is not None
                got = self.decode(home, of_party[name])
            else:
                try:
                    got = await self.net.recv(name, "likelihood", self._expect(len(own)))
                except PartyLost:
                    there.silent.append(name)
                    continue
            log_p.index_add_(1, own, got["log_p"].to(z.device))
            if slope is not None:
                slope.index_add_(1, own, got["slope"].to(z.device))
        return log_p, slope

    def _places(self, there: Gathered) -> dict[str, Tensor]:
        """Return, for each party that answers, which rows of the batch it answers for."""
        if not self.mnar:
            return {name: held for name, (held, _) in there.parts.items()}
        every = torch.arange(len(self.batch.rows), device=self.seat.device)
        return {name: every for name in self.seat.roster.blocks if name in self.asked and name not in there.silent}

    def _expect(self, rows: int) -> dict[str, Expect]:
        expect = {"log_p": Expect((self.L, rows))}
        return expect | {"slope": Expect((self.L, rows, self.D))} if self.follows else expect

    def labels(self) -> tuple[Tensor, Tensor]:
        """Return the labels of the batch and which of them are known, [B] both."""
        assert self.rows.y is not None
        assert self.rows.labeled is not None
        return self.rows.y[self.batch.rows], self.rows.labeled[self.batch.rows]

    # Both

    def _look_at_floor(self, side: FeatureSide, z: Tensor) -> None:
        """Say when most deviations of the party's columns have fallen to the floor."""
        with torch.no_grad(), self._drawing("decoder draws"):
            share = float((side.decode(z).std < FALLEN * side.floor).float().mean())
        if share > MANY:
            warnings.warn(
                f"party {self.seat.me!r}: its decoder is as sure as floor = {side.floor:g} lets it be of most numbers "
                f"of its block: columns are constant or copies of others; drop them, or raise the floor", stacklevel=3
            )  # fmt: skip

    def _drawing(self, name: str) -> AbstractContextManager[None]:
        return self.batch.drawing(name, self.seat.me, device=self.seat.device)

    def finite(self, tensor: Tensor, what: str) -> None:
        """Hold a tensor to numbers, ``what`` it is as a sentence begins.

        Raises:
            Diverged: it holds others.
        """
        if not finite(tensor.detach()):
            raise Diverged(f"{what} no longer numbers at {moment(self.batch)}: lower the learning rate, or look for "
                           f"extreme values in the parties' columns")  # fmt: skip


@dataclass
class Home:
    """One party's own part of a batch.

    Attributes:
        side: its networks.
        x: [B_k, F], its block of the rows that it has.
        held: [B_k], which rows of the batch they are.
        views: [B_k, 2 D], mean and variance of z.
        log_p: how well samples explain the block, with its graph, once they have come.

    """

    side: FeatureSide
    x: Tensor
    held: Tensor
    views: Tensor
    log_p: Tensor | None = None

    def backward(self, back: dict[str, Tensor], parameters: Sequence[nn.Parameter]) -> None:
        """Carry on the gradient by the embedding, and that by the log-likelihoods if it came too."""
        ends = [(self.views, back["g"])]
        if "log_p" in back:
            assert self.log_p is not None
            ends.append((self.log_p, back["log_p"]))
        for end, gradient in ends:
            if end.requires_grad and parameters:
                torch.autograd.backward(end, gradient.to(end.device), inputs=parameters)


@dataclass
class Weighed:
    """A batch at the active party, samples drawn and weighed.

    Attributes:
        there: who took part.
        views: [B, K, 2 D], a leaf of the active party's graph.
        draws: the samples.
        log_p: [L, B], the sum of the parties' log-likelihoods, a leaf too.
        log_w: [L, B], the log-weights.

    """

    there: Gathered
    views: Tensor
    draws: Draws
    log_p: Tensor
    log_w: Tensor

    def backs(self, turn: Turn, *, likelihoods: bool) -> dict[str, dict[str, Tensor]]:
        """Return what each party gets back, after the loss went backward."""
        roster = turn.seat.roster
        assert self.views.grad is not None
        nothing = self.views.new_zeros(0, self.views.shape[2])
        by_view = self.there.collect(roster, self.views.grad)
        if turn.mnar:
            by_view = {name: by_view.get(name, nothing) for name in roster.blocks}
        found = {name: {"g": gradient} for name, gradient in by_view.items() if name not in self.there.silent}
        if likelihoods:
            assert self.log_p.grad is not None
            for name, back in found.items():
                back["log_p"] = self.log_p.grad if turn.mnar else self.log_p.grad[:, self.there.parts[name][0]]
        return found
