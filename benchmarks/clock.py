"""The cost of a virtual clock per simulated step: python -m benchmarks.clock.

In a step, one party gets the local iterations of all parties, computes the duration of the round, and advances its
clock.  Every party has its own clock, so a round of K parties has K steps.  With VAFL, a step belongs to a message
exchange of one party with the server in place of a round.
"""

from __future__ import annotations

from collections.abc import Callable

from anyparty import MLP
from anyparty.config.method_factory import SCHEDULES, schedule
from anyparty.core.types import Party, Roster, Task
from anyparty.methods.method import PartyContext, State
from anyparty.methods.schedules.round import Round
from anyparty.methods.schedules.vafl import VAFL, VaflParty
from anyparty.methods.schedules.virtual_clock import VirtualClock
from anyparty.methods.split.split_method import Split
from anyparty.methods.split.standard import Standard
from benchmarks.page import Page, quick_asked, target
from benchmarks.timing import Contender, alternate, now, torch_threads

COUNTS, SAMPLES, MOST_US = (4, 12, 64), 276, 50.0  # numbers of parties; samples in a day of Google's cluster; target


def clock_of(names: list[str], *, trace: bool) -> VirtualClock:
    """Return a clock on which every party has its own speed."""
    speeds = {name: 1 + 3 * k / len(names) for k, name in enumerate(names)}
    use = {name: tuple(((k + r) % 10) / 20 for r in range(SAMPLES)) for k, name in enumerate(names)} if trace else {}
    return VirtualClock(iteration=speeds, latency=10.0, timeout=20.0, use=use)


def stepping(name: str, parties: int, *, trace: bool) -> Callable[[int], object]:
    """Return a function that takes one step of the active party's clock, by number."""
    names = [f"party{k + 1}" for k in range(parties)]
    roster = Roster((*(Party(name=each) for each in names), Party(name="server", columns=False, labels=True)), "server")
    made, local = schedule(name)
    seat = PartyContext(me="server", roster=roster, task=Task(kind="regression"), encoder=MLP())
    split, clock, state = Split(rule=Standard()), clock_of(names, trace=trace), State(seat)
    if isinstance(made, VAFL):
        meetings = VaflParty(split=split, schedule=made, clock=clock, local=local, seat=seat)
        return lambda number: meetings.advance(state, number)
    rounds = Round(split=split, schedule=made, clock=clock, local=local, seat=seat)
    return lambda number: rounds.spend(state, rounds.iterations(number), number, 0.0)


def contender(step: Callable[[int], object]) -> Contender:
    """Return a function for ``timing.alternate`` that takes a number of steps and returns their seconds."""

    def run(steps: int) -> float:
        began = now()
        for number in range(steps):
            step(number)
        return now() - began

    return run


def main(*, quick: bool) -> None:
    page = Page("clock", "What the virtual clock costs a simulated step", quick)
    page.say((__doc__ or "").split("\n\n", 1)[1].replace("\n", " ") + "One thread, that thread's own time; medians, "
             "quartiles in brackets.")  # fmt: skip
    with torch_threads(1):
        for trace in (False, True):
            rows = []
            for parties in COUNTS[:2] if quick else COUNTS:
                times = alternate(
                    {name: contender(stepping(name, parties, trace=trace)) for name in SCHEDULES},
                    rounds=3 if quick else 15, turn_s=0.05 if quick else 0.3,
                )  # fmt: skip
                for name in SCHEDULES:
                    spent = times.microseconds(name)
                    rows.append([str(parties), name, str(spent), target(spent, MOST_US)])
            heading = f"Speeds {'by a trace' if trace else 'constant'}: microseconds a step of one party"
            page.table(heading, ("K", "schedule", "µs", "target"), rows)
    page.write()


if __name__ == "__main__":
    main(quick=quick_asked(__doc__))
