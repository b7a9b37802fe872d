"""Random rows, parties and networks for timing, with the shapes of the published HAPT experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anyparty.core.seeds import Seeds
from anyparty.core.types import Party, Roster, Task
from anyparty.methods.method import Batch, PartyContext, State
from anyparty.methods.method_registry import method
from anyparty.methods.split.split_method import Split
from anyparty.networks.encoders import MLP
from anyparty.networks.optimizer import Optimizer
from anyparty.problem.rows import Block, Rows

FEATURES, HIDDEN, EMBEDDING, CLASSES, BATCH, N = 560, (128, 128), 128, 12, 128, 4096
SGD = Optimizer(name="sgd", lr=0.03, momentum=0.8, weight_decay=1e-4)
TASK = Task(kind="classification", classes=tuple(f"activity {c}" for c in range(CLASSES)))


@dataclass(frozen=True, kw_only=True)
class World:
    """K parties and N rows; blocks are missing with probability ``missing``, and the first party has the labels."""

    roster: Roster
    rows: Mapping[str, Rows]
    inputs: int

    @classmethod
    def of(
        cls, K: int, missing: float = 0.0, n: int = N, blocks: int | None = None, *, features: int = FEATURES,
        device: str = "cpu",
    ) -> World:  # fmt: skip
        """Draw random rows of K parties: 560 features in blocks of equal width, without the remaining features."""
        lots = torch.Generator().manual_seed(0)
        roster = Roster(tuple(Party(name=f"p{k}", labels=k == 0) for k in range(K)), "p0")
        observed = torch.rand(n, K, generator=lots) >= missing
        inputs, every = features // (blocks or K), {}
        for k, name in enumerate(roster.names):
            held = observed[:, k]
            x, position = torch.randn(int(held.sum()), inputs, generator=lots), held.cumsum(0) - 1
            block = Block(x.to(device), torch.where(held, position, -1).to(device))
            every[name] = Rows(n=n, block=block)
        lead = Rows(
            n=n,
            block=every["p0"].block,
            y=torch.randint(CLASSES, (n,), generator=lots).to(device),
            labeled=torch.ones(n, dtype=torch.bool, device=device),
            observed=observed.to(device),
            key=torch.arange(n, device=device),
        )
        return cls(roster=roster, rows=every | {"p0": lead}, inputs=inputs)

    @property
    def lead(self) -> Rows:
        """The active party's rows."""
        return self.rows[self.roster.active]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A method with the newly initialised networks of all parties of a world."""

    world: World
    method: Split
    states: Mapping[str, State]
    seeds: Seeds = Seeds(0)

    @classmethod
    def of(cls, world: World, name: str, **parameters: object) -> Model:
        """Initialise the networks of all parties."""
        made = method(name, embedding=EMBEDDING, **parameters)
        assert isinstance(made, Split)
        states = {}
        for party in world.roster.names:
            task = TASK if party == world.roster.active else None
            seat = PartyContext(
                me=party, roster=world.roster, task=task, inputs=world.inputs, encoder=MLP(hidden=HIDDEN), optimizer=SGD
            )
            states[party] = made.begin(seat, Seeds(0))
        return cls(world=world, method=made, states=states)

    @property
    def lead(self) -> State:
        """The active party's state."""
        return self.states[self.world.roster.active]

    def batches(self, count: int) -> list[Batch]:
        """Draw batches of the method's training rows."""
        usable = self.method.stages(self.lead.seat)[0].rows(self.world.lead).nonzero().squeeze(1)
        lots = torch.Generator().manual_seed(1)
        picked = [usable[torch.randint(len(usable), (BATCH,), generator=lots)] for _ in range(count)]
        return [Batch(rows, self.seeds, ("train", 0, step)) for step, rows in enumerate(picked)]

    def parameters(self) -> list[Tensor]:
        """Return all weights of all parties."""
        return [p for state in self.states.values() for module in state.modules.values() for p in module.parameters()]
