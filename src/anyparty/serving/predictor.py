"""The prediction service at the active party: ids in, answers with their provenance out, within a time budget.

    id ── Directory ──▶ places ── Link: the parties that are there are asked ──▶ the method's own ``predict``

Every party that has a row and may take part is asked.  One that is not there, hangs, leaves, or sends what is not
expected is left out and named; with nobody else there, the active party's own block answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anyparty.errors import PartyLost, PredictionError, nearest
from anyparty.methods.method import Batch
from anyparty.nets.estimator import Fitted
from anyparty.predictions import Predictions, refuse_without_labels
from anyparty.seeds import Seeds
from anyparty.serving.answers import Answer, answers
from anyparty.serving.batch_executor import Worker
from anyparty.serving.circuit_breaker import Breaker
from anyparty.serving.loaded_party import Directory, Kept
from anyparty.serving.multiplexer import Lanes, Request
from anyparty.serving.peer_group import ABSENT, Link
from anyparty.serving.service_settings import Limits
from anyparty.serving.serving_protocol import MOST_ROWS, NOWHERE, Ask
from anyparty.terms import Channel, Expect, Tensors
from anyparty.wire.guard import Guarded


@dataclass(frozen=True, kw_only=True)
class Told:
    """What became of one request, for whoever counts.

    Attributes:
        answered, silent: the parties that were asked and answered, that did not.
        alone: ids that were answered from the active party's block alone.

    """

    answered: tuple[str, ...]
    silent: tuple[str, ...]
    alone: int


@dataclass(frozen=True)
class Budget:
    """How long a request waits for other parties, and until when by the loop's clock, in seconds."""

    seconds: float
    deadline: float


@dataclass
class _Nobody:
    """A channel on which nobody is."""

    me: str

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Drop it."""

    async def recv(self, frm: str, tag: str, expect: Mapping[str, Expect]) -> dict[str, Tensor]:  # noqa: ARG002
        """Nothing will come."""
        raise PartyLost(frm, ABSENT)

    async def close(self) -> None:
        """Nothing to close."""


@dataclass
class Service:
    """The active party's service.

    Attributes:
        kept: what the active party kept of training.
        directory: which ids it knows.
        links: the ways to the other parties, the newest last.
        breaker: whom to wait for.
        fair_s: see ``Limits``.
        told: hears of every request.
        worker: where requests of many rows are computed.

    """

    kept: Kept
    directory: Directory
    links: list[Link] = field(default_factory=list)
    breaker: Breaker = field(default_factory=Breaker)
    fair_s: float = Limits().fair_s
    told: Callable[[Told], None] = lambda told: None  # noqa: ARG005
    worker: Worker = field(default_factory=Worker)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.kept.state.train(False)
        assert self.kept.about.task is not None
        refuse_without_labels(self.kept.about.task)
        for module in self.kept.state.modules.values():
            if isinstance(module, Fitted):
                module.fit_again()  # now, and not while the first request waits
        blocks, me = self.kept.roster.blocks, self.kept.me
        self._k = blocks.index(me) if me in blocks else None
        self._nobody = Lanes(_Nobody(me), ())

    def link(self) -> Link | None:
        """Return the way that reaches most parties, of equals the newest."""
        return max(self.links, key=lambda link: (len(link.there), self.links.index(link)), default=None)

    def there(self) -> set[str]:
        """Return the other parties that can be asked now."""
        link = self.link()
        return set() if link is None else link.there

    def heard(self, party: str, number: int) -> None:
        """Take note of any numbered message: see ``Breaker``."""
        self.breaker.heard(party, number, asyncio.get_running_loop().time())

    def allowed(self, parties: Sequence[str] | None) -> tuple[str, ...]:
        """Return the parties whose blocks may take part, in the roster's order.

        Raises:
            PredictionError: a party that the model does not know, or none.
        """
        blocks = self.kept.roster.blocks
        for name in parties or ():
            if name not in blocks:
                raise PredictionError(f"the model has no party {name!r} with columns{nearest(name, blocks)}")
        if parties is not None and not parties:
            raise PredictionError("'parties' is empty: name those that may take part, or leave it out for all")
        may = {self.kept.me} if self.kept.method.can.predicts_alone else set(blocks)
        return tuple(name for name in blocks if name in may and (parties is None or name in parties))

    async def predict(
        self, ids: Sequence[str], parties: Sequence[str] | None = None, *, budget_s: float
    ) -> list[Answer]:
        """Answer for each id, in order.

        Args:
            ids: text; an id that is asked twice is answered twice.
            parties: those whose blocks may take part; by default all.
            budget_s: how long to wait for other parties.

        Raises:
            PredictionError: a party that the model does not know, or none.

        """
        asked, budget = self.allowed(parties), Budget(budget_s, asyncio.get_running_loop().time() + budget_s)
        found = self.directory.find(ids)
        said = [Answer(id=name, reason=self.directory.unknown) for name in ids]
        known = [n for n, place in enumerate(found) if place is not None]
        for start in range(0, len(known), MOST_ROWS):
            some = known[start : start + MOST_ROWS]
            places = torch.tensor([found[n] for n in some])
            for n, answer in zip(some, await self._some([ids[n] for n in some], places, asked, budget), strict=True):
                said[n] = answer
            await asyncio.sleep(0)  # others' turn
        return said

    async def _some(self, ids: Sequence[str], places: Tensor, asked: tuple[str, ...], budget: Budget) -> list[Answer]:
        """Answer for rows at ``places`` [B]."""
        kept, may = self.kept, torch.tensor([name in asked for name in self.kept.roster.blocks])
        observed = self.directory.present(places, self._k)  # [B, K]
        aligned = self.directory.aligned[places]
        request = await self._ask(aligned, observed, observed & may, asked, budget)
        at = self.directory
        rows = kept.rows(at.own[places], observed, at.keys(places), at.names(places))
        batch = Batch(torch.arange(len(places)), Seeds(kept.about.seed))
        net: Channel = Guarded(request.channel, kept.roster, kept.method.can.messages, bounds=None)
        try:
            made = await self.worker.play(
                lambda way: kept.method.predict(way, kept.state, rows, batch, asked), net, len(places)
            )
        except PartyLost as error:  # of a party that the method cannot do without
            made = self._nothing(len(places), str(error))
        finally:
            request.end()
        assert made is not None
        said = answers(ids, aligned >= 0, observed & may, made, request.channel.silent)
        self._tell(request, said)
        return said

    def _nothing(self, n: int, reason: str) -> Predictions:
        """Return no number for n rows."""
        about, K = self.kept.about, self.kept.roster.K
        assert about.task is not None
        return Predictions(
            task=about.task, blocks=about.roster.blocks, scores=torch.full((n, about.task.outputs), torch.nan),
            took_part=torch.zeros(n, K, dtype=torch.bool), asked=torch.ones(K, dtype=torch.bool),
            predictor=self.kept.method.can.title, reasons=dict.fromkeys(range(n), reason),
        )  # fmt: skip

    async def _ask(
        self, aligned: Tensor, observed: Tensor, wanted: Tensor, asked: tuple[str, ...], budget: Budget
    ) -> _Asked:
        """Ask the parties that have one of these rows, and those that may host heads; wait for nobody."""
        roster, number, now = self.kept.roster, next(self._numbers), asyncio.get_running_loop().time()
        have = dict(zip(roster.blocks, wanted.any(dim=0).tolist(), strict=True))
        may_host = () if self.kept.method.can.predicts_alone else roster.labelers
        whom = [n for n in roster.names if n != self.kept.me and (have.get(n) or n in may_host)]
        link = self.link() if whom else None
        if link is None:
            nobody = {name: ABSENT for name in roster.names if name != self.kept.me}
            request = self._nobody.open(number, budget.deadline, budget.seconds, nobody)
            return _Asked(request, self._nobody, whom, [])
        absent = {name: why for name in roster.names if (why := link.why_not(name)) and name != self.kept.me}
        there = [name for name in whom if name not in absent]
        waited = [name for name in there if self.breaker.waits(name)]
        background = [name for name in there if name not in waited and self.breaker.probes(name, now)]
        fair = budget.deadline - now >= self.fair_s
        for name in background:
            self.breaker.probe(name, number, now, max(budget.deadline, now + self.fair_s))
        unheard = [name for name in there if name not in waited]
        absent |= {name: self.breaker.why(name) for name in unheard}
        ask = Ask(number=number, rows=torch.where(aligned < 0, NOWHERE, aligned), observed=observed,
                  asked=tuple(name for name in asked if name not in absent),
                  within_s=max(0.0, budget.deadline - now))  # fmt: skip
        request = link.lanes.open(number, budget.deadline, budget.seconds, absent, unheard)
        with contextlib.suppress(PartyLost):
            await link.ask(ask, waited)
            also = tuple(name for name in asked if name in ask.asked or name in background)
            await link.ask(replace(ask, asked=also, within_s=max(ask.within_s, self.fair_s)), background)
        return _Asked(request, link.lanes, whom, waited, fair)

    def _tell(self, request: _Asked, said: Sequence[Answer]) -> None:
        channel = request.channel
        answered = [name for name in request.waited if name in channel.came and name not in channel.silent]
        for name in answered:
            self.breaker.answered(name)
        for name in channel.late.intersection(request.waited) if request.fair else ():
            self.breaker.missed(name)
        self.told(
            Told(
                answered=tuple(answered),
                silent=tuple(name for name in request.whom if name in channel.silent),
                alone=sum(each.took_part == (self.kept.me,) for each in said),
            )
        )


@dataclass(frozen=True)
class _Asked:
    """A request on its way: whom it concerns, for whom it waits, and whether it gives them a fair time."""

    channel: Request
    lanes: Lanes
    whom: Sequence[str]
    waited: Sequence[str]
    fair: bool = True

    def end(self) -> None:
        """Let what still comes be late."""
        self.lanes.end(self.channel.number)
