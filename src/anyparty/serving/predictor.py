"""Predict rows by id at the active party, within a time budget, with the parties that are connected.

    id ── RowIndex ──▶ rows ── PeerGroup: ask the connected parties ──▶ the method's own ``predict``

A request is sent to every party that holds one of the requested rows and may take part.  A party that is offline,
hangs, leaves or sends an invalid message is left out, and the answer lists this party.  If no other party is connected,
the answer uses only the active party's block.

``Predictor.predict`` predicts small requests together that arrive at about the same time (``request_batcher``).  The
answer for a row does not depend on other rows, so no answer changes, but many clients share the cost of the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anyparty.core.predictions import Predictions, refuse_without_labels
from anyparty.core.seeds import Seeds
from anyparty.core.types import Channel, Tensors, TensorSpec
from anyparty.errors import PartyLost, PredictionError, nearest
from anyparty.methods.method import Batch
from anyparty.networks.sklearn_head import FittedEstimator
from anyparty.serving.batch_executor import BatchExecutor
from anyparty.serving.loaded_party import LoadedParty, RequestedId, RowIndex
from anyparty.serving.peer_group import NOT_CONNECTED, CircuitBreaker, PeerGroup
from anyparty.serving.request_batcher import PendingRequest, RequestBatcher, TimeBudget
from anyparty.serving.service_settings import ServiceLimits
from anyparty.serving.serving_protocol import MAX_ROWS, NO_ROW, Multiplexer, RequestChannel, RowRequest
from anyparty.transport.contract import ContractChannel


@dataclass(frozen=True, kw_only=True)
class RowPrediction:
    """The prediction for one id, with its provenance.

    Attributes:
        id: the requested id, with the type of the table's id column; a composite id maps each id column to its value.
        prediction: the most probable class, or the predicted number; ``None`` if there is no answer.
        probabilities: the probabilities by class; ``None`` for regression, or if there is no answer.
        took_part: the parties whose blocks were used.
        asked: the parties that hold the row and may take part.
        silent: the parties in ``asked`` that did not answer in time, with the reason.
        aligned: whether the row is in the alignment; if not (a new customer), only the active party holds it.
        predictor: description of the predictor that was used.
        reason: why there is no prediction; ``None`` if there is a prediction.
        remarks: sentences on the active party's cells in this row, if they differ from training or are all empty.

    """

    id: RequestedId
    prediction: str | float | None = None
    probabilities: dict[str, float] | None = None
    took_part: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    silent: dict[str, str] = field(default_factory=dict)
    aligned: bool = False
    predictor: str = ""
    reason: str | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """The outcome of one request, for metrics.

    Attributes:
        answered: the parties that answered in time.
        silent: the parties that could contribute, and did not answer in time.
        own_only: number of ids that were answered from the active party's block only.
        overdue: whether the request waited too long in the service, so no other party was asked.

    """

    answered: tuple[str, ...]
    silent: tuple[str, ...]
    own_only: int
    overdue: bool = False


@dataclass
class _NoChannel(Channel):
    """The active party's channel while no other party is connected."""

    me: str

    async def send(self, to: str, tag: str, tensors: Tensors) -> None:
        """Discard the message, because no other party is connected."""

    async def recv(self, frm: str, tag: str, expect: Mapping[str, TensorSpec]) -> dict[str, Tensor]:  # noqa: ARG002
        """Raise ``PartyLost``, because the sender is not connected."""
        raise PartyLost(frm, NOT_CONNECTED)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""


@dataclass
class Predictor:
    """The prediction service of the active party, without HTTP.

    Attributes:
        party: the active party's part of the model.
        index: the rows that can be requested, by id.
        peer_groups: for each serving job, the connections to the other parties; the newest job is last.
        breaker: decides which parties a request waits for.
        min_wait_s: time in seconds that a request must wait for a party before a missing answer counts as a miss.
        on_outcome: function that is called with the outcome of each request.
        executor: computes requests of many rows in a thread.
        batcher: collects small requests that are predicted together.

    """

    party: LoadedParty
    index: RowIndex
    peer_groups: list[PeerGroup] = field(default_factory=list)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    min_wait_s: float = ServiceLimits().min_wait_s
    on_outcome: Callable[[RequestOutcome], None] = lambda outcome: None  # noqa: ARG005
    executor: BatchExecutor = field(default_factory=BatchExecutor)
    batcher: RequestBatcher[RowPrediction] = field(init=False)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.batcher = RequestBatcher(self._predict_batch)
        self.party.state.train(False)
        assert self.party.summary.task is not None
        refuse_without_labels(self.party.summary.task)
        for module in self.party.state.modules.values():
            if isinstance(module, FittedEstimator):
                module.fit_again()  # fit at the start, not in the first request
        blocks, me = self.party.roster.blocks, self.party.me
        self._k = blocks.index(me) if me in blocks else None
        self._no_peers = Multiplexer(_NoChannel(me), ())

    def best_peers(self) -> PeerGroup | None:
        """Return the peer group with the most connected parties (in a tie, the newest); ``None`` without a group."""
        groups = self.peer_groups
        return max(groups, key=lambda group: (len(group.connected), groups.index(group)), default=None)

    def connected(self) -> set[str]:
        """Return the parties, apart from the active one, to which requests can be sent now."""
        peers = self.best_peers()
        return set() if peers is None else peers.connected

    def message_arrived(self, party: str, number: int) -> None:
        """Report to the circuit breaker that a message of request ``number`` arrived from ``party``."""
        self.breaker.message_arrived(party, number, asyncio.get_running_loop().time())

    def allowed(self, parties: Sequence[str] | None) -> tuple[str, ...]:
        """Return the parties of the request (``None`` for all) whose blocks may take part, in the roster's order.

        Raises:
            PredictionError: the model does not have one of these parties, or the list is empty.
        """
        blocks = self.party.roster.blocks
        for name in parties or ():
            if name not in blocks:
                raise PredictionError(f"the model has no party {name!r} with columns{nearest(name, blocks)}")
        if parties is not None and not parties:
            raise PredictionError("'parties' is empty: name the parties that may take part, or leave it out for all")
        usable = {self.party.me} if self.party.method.can.predicts_alone else set(blocks)
        return tuple(name for name in blocks if name in usable and (parties is None or name in parties))

    async def predict(
        self, ids: Sequence[RequestedId], parties: Sequence[str] | None = None, *, budget_s: float,
        arrived: float | None = None,
    ) -> list[RowPrediction]:  # fmt: skip
        """Return one prediction for each id, in the order of the ids.

        Args:
            ids: the ids; an id of several columns is a mapping from column name to value. Ids may repeat.
            parties: the parties whose blocks may take part; by default all parties.
            budget_s: how long the request may wait in the service and for other parties, in seconds.
            arrived: when the request arrived, in the event loop's time; by default now.

        Raises:
            PredictionError: the model does not have one of these parties, the list is empty, or an id does not have
                exactly the id columns.

        """
        loop = asyncio.get_running_loop()
        arrived = loop.time() if arrived is None else arrived
        budget = TimeBudget(budget_s, arrived, arrived + budget_s)
        request = PendingRequest(ids, self.allowed(parties), budget, loop.create_future())
        return await self.batcher.predict(request)

    async def _predict_batch(self, requests: Sequence[PendingRequest[RowPrediction]]) -> None:
        """Predict the ids of requests that have the same parties and the same budget, and complete the requests."""
        found = self._find(requests)
        requests = [request for request in requests if not request.answer.done()]
        if not requests:
            return
        ids = [name for request in requests for name in request.ids]
        owners = [request for request in requests for _ in request.ids]
        predictions = [RowPrediction(id=name, reason=self.index.unknown) for name in ids]
        known = [n for n, place in enumerate(found) if place is not None]
        for start in range(0, len(known), MAX_ROWS):
            chunk = known[start : start + MAX_ROWS]
            places = torch.tensor([found[n] for n in chunk])
            named = self.index.identities(places, [ids[n] for n in chunk])
            made = await self._predict_chunk(named, places, [owners[n] for n in chunk])
            for n, prediction in zip(chunk, made, strict=True):
                predictions[n] = prediction
            await asyncio.sleep(0)  # let other requests run
        answers = iter(predictions)
        for request in requests:
            request.complete(list(itertools.islice(answers, len(request.ids))))

    def _find(self, requests: Sequence[PendingRequest[RowPrediction]]) -> list[int | None]:
        """Look up the ids of all valid requests; a request with an id of other columns fails here."""
        try:
            return self.index.find([name for request in requests for name in request.ids])
        except PredictionError as error:
            if len(requests) == 1:
                requests[0].fail(error)
                return []
            return [place for request in requests for place in self._find([request])]

    async def _predict_chunk(
        self, ids: Sequence[RequestedId], places: Tensor, owners: Sequence[PendingRequest[RowPrediction]]
    ) -> list[RowPrediction]:
        """Return predictions for B rows.

        ``places`` [B] are the positions of these rows in the index.  ``owners`` [B] are the requests of the rows.
        """
        party, index, allowed = self.party, self.index, owners[0].allowed
        budget = min((owner.budget for owner in owners), key=lambda budget: budget.deadline)
        may = torch.tensor([name in allowed for name in party.roster.blocks])
        observed = index.present(places, self._k)  # [B, K], True if party k holds the row
        aligned = index.aligned[places]
        request = await self._ask_peers(aligned, observed, observed & may, allowed, budget)
        rows = party.rows(index.own[places], observed, index.keys(places), index.names(places))
        batch = Batch(torch.arange(len(places)), Seeds(party.summary.seed))
        guarded: Channel = ContractChannel(request.channel, party.roster, party.method.can.messages, bounds=None)
        try:
            predicted = await self.executor.run(
                lambda channel: party.method.predict(channel, party.state, rows, batch, allowed), guarded, len(places)
            )
        except PartyLost as error:  # the method cannot predict without the party that was lost
            predicted = self._without_answer(len(places), str(error))
        finally:
            request.end()
        assert predicted is not None
        predicted = predicted.calibrated().unweighted()
        predictions = row_predictions(ids, aligned >= 0, observed & may, predicted, request.channel.silent)
        if (remarks := party.remarks) is not None and party.me in allowed:
            own = index.own[places].tolist()
            predictions = [replace(each, remarks=remarks.of(row)) for each, row in zip(predictions, own, strict=True)]
        self._report(request, predictions, owners)
        return predictions

    def _without_answer(self, n: int, reason: str) -> Predictions:
        """Return predictions without an answer for n rows; ``reason`` explains why there is no answer."""
        summary, K = self.party.summary, self.party.roster.K
        assert summary.task is not None
        return Predictions(
            task=summary.task, blocks=summary.roster.blocks, scores=torch.full((n, summary.task.outputs), torch.nan),
            took_part=torch.zeros(n, K, dtype=torch.bool), asked=torch.ones(K, dtype=torch.bool),
            predictor=self.party.method.can.title, reasons=dict.fromkeys(range(n), reason),
        )  # fmt: skip

    async def _ask_peers(
        self, aligned: Tensor, observed: Tensor, wanted: Tensor, allowed: tuple[str, ...], budget: TimeBudget
    ) -> _OpenRequest:
        """Send a request for B rows to the parties that hold a row or may host heads; do not wait for the answers.

        ``wanted`` [B, K] bool marks the parties that hold each row and may take part.
        """
        roster, number, now = self.party.roster, next(self._numbers), asyncio.get_running_loop().time()
        if self.overdue(budget, now):
            late = (
                f"the request had waited {1e3 * (now - budget.arrived):.0f} ms in the service, longer than its budget"
            )
            nobody = {name: late for name in roster.names if name != self.party.me}
            channel = self._no_peers.open(number, budget.deadline, budget.seconds, nobody)
            return _OpenRequest(channel, self._no_peers, [], [], overdue=True)
        holds = dict(zip(roster.blocks, wanted.any(dim=0).tolist(), strict=True))
        may_host = () if self.party.method.can.predicts_alone else roster.labelers
        needed = [n for n in roster.names if n != self.party.me and (holds.get(n) or n in may_host)]
        peers = self.best_peers() if needed else None
        if peers is None:
            nobody = {name: NOT_CONNECTED for name in roster.names if name != self.party.me}
            channel = self._no_peers.open(number, budget.deadline, budget.seconds, nobody)
            return _OpenRequest(channel, self._no_peers, needed, [], hosts=may_host)
        absent = {name: reason for name in roster.names
                  if (reason := peers.unavailable(name)) and name != self.party.me}  # fmt: skip
        connected = [name for name in needed if name not in absent]
        waited = [name for name in connected if self.breaker.waits_for(name)]
        probed = [name for name in connected if name not in waited and self.breaker.probe_due(name, now)]
        full_wait = budget.deadline - now >= self.min_wait_s
        for name in probed:
            self.breaker.probe(name, number, now, max(budget.deadline, now + self.min_wait_s))
        ignored = [name for name in connected if name not in waited]
        absent |= {name: self.breaker.reason(name) for name in ignored}
        ask = RowRequest(number=number, rows=torch.where(aligned < 0, NO_ROW, aligned), observed=observed,
                         allowed=tuple(name for name in allowed if name not in absent),
                         within_s=max(0.0, budget.deadline - now))  # fmt: skip
        channel = peers.multiplexer.open(number, budget.deadline, budget.seconds, absent, ignored)
        with contextlib.suppress(PartyLost):
            await peers.ask(ask, waited)
            also = tuple(name for name in allowed if name in ask.allowed or name in probed)
            await peers.ask(replace(ask, allowed=also, within_s=max(ask.within_s, self.min_wait_s)), probed)
        return _OpenRequest(channel, peers.multiplexer, needed, waited, full_wait, may_host)

    def overdue(self, budget: TimeBudget, now: float) -> bool:
        """Return True if a request has waited in the service for longer than its budget.

        A budget below ``min_wait_s`` does not make a request overdue, because every request waits for a moment.
        """
        return now - budget.arrived > max(budget.seconds, self.min_wait_s)

    def _report(
        self,
        request: _OpenRequest,
        predictions: Sequence[RowPrediction],
        owners: Sequence[PendingRequest[RowPrediction]],
    ) -> None:
        """Report to the circuit breaker which parties answered, and pass each request's outcome to ``on_outcome``."""
        channel = request.channel
        answered = [name for name in request.waited if name in channel.responded and name not in channel.silent]
        for name in answered:
            self.breaker.answered(name)
        for name in channel.late.intersection(request.waited) if request.full_wait else ():
            self.breaker.missed(name)
        silent = [name for name in request.needed if name in channel.silent]
        rows = defaultdict[PendingRequest[RowPrediction], list[RowPrediction]](list)
        for owner, prediction in zip(owners, predictions, strict=True):
            rows[owner].append(prediction)
        for each in rows.values():
            needed = {name for prediction in each for name in prediction.asked}.union(request.hosts)
            self.on_outcome(
                RequestOutcome(
                    answered=tuple(name for name in answered if name in needed),
                    silent=tuple(name for name in silent if name in needed),
                    own_only=sum(prediction.took_part == (self.party.me,) for prediction in each),
                    overdue=request.overdue,
                )
            )


@dataclass(frozen=True)
class _OpenRequest:
    """A request for which messages may still arrive.

    Attributes:
        channel: the request's channel.
        multiplexer: the multiplexer in which the request is open.
        needed: the parties that hold a requested row or may host heads.
        waited: the parties that the request waits for.
        full_wait: whether the request waits long enough for the breaker to record a missing answer as a miss.
        hosts: the parties that may host heads, which every request needs.
        overdue: whether the request has waited too long in the service, so no other party was asked.

    """

    channel: RequestChannel
    multiplexer: Multiplexer
    needed: Sequence[str]
    waited: Sequence[str]
    full_wait: bool = True
    hosts: Sequence[str] = ()
    overdue: bool = False

    def end(self) -> None:
        """Close the request; messages that arrive afterwards are late."""
        self.multiplexer.end(self.channel.number)


def row_predictions(
    ids: Sequence[RequestedId], aligned: Tensor, asked: Tensor, made: Predictions, silent: Mapping[str, str]
) -> list[RowPrediction]:
    """Convert a method's predictions of B rows to one ``RowPrediction`` for each id.

    Args:
        ids: [B], the requested ids.
        aligned: [B] bool, whether the row is in the alignment.
        asked: [B, K] bool, which party holds the row and may take part.
        made: the method's predictions.
        silent: reason for each party that did not answer.

    """
    labels, scores = made.labels(), made.scores.tolist()
    took_part, may, in_alignment = made.took_part.tolist(), asked.tolist(), aligned.tolist()

    def names(mask: Sequence[bool]) -> tuple[str, ...]:
        return tuple(name for name, marked in zip(made.blocks, mask, strict=True) if marked)

    predictions = []
    for n, name in enumerate(ids):
        valid, parties = not any(math.isnan(score) for score in scores[n]), names(may[n])
        classes = made.task.classes if valid else ()
        predictions.append(
            RowPrediction(
                id=name, prediction=labels[n], took_part=names(took_part[n]), asked=parties, aligned=in_alignment[n],
                probabilities=dict(zip(classes, scores[n], strict=True)) if classes else None,
                silent={party: silent[party] for party in parties if party in silent},
                predictor=made.predictor, reason=None if valid else made.reasons.get(n, "there is no answer"),
            )
        )  # fmt: skip
    return predictions
