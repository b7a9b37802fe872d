"""The other parties, as one job reaches them: who is there, and one request to all of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from anyparty.errors import MessageError, PartyLost
from anyparty.serving import serving_protocol as asking
from anyparty.serving.loaded_party import Kept
from anyparty.serving.multiplexer import RENEW_S, Lanes, lanes_to
from anyparty.serving.serving_protocol import Ask
from anyparty.terms import Channel
from anyparty.wire.guard import Guarded
from anyparty.wire.ledger import Counted, Ledger

ABSENT = "it is not connected"
SETTLED_S = 0.05  # until everybody who waited for a party's former process has heard that it is gone


class Link:
    """A way from the active party to the others.

    Attributes:
        ready: the parties that serve with the same model and alignment.
        refused: those that do not, and why.
        lanes: what comes from them.
        began: when the link was made, by ``time.monotonic``.

    """

    def __init__(
        self, kept: Kept, net: Channel, ledger: Ledger, heard: Callable[[str, int], None], *, renew_s: float = RENEW_S
    ) -> None:
        """Prepare; ``run`` begins.  ``heard`` is told of every message, (party, number of its request)."""
        self.kept, self.net, self.began = kept, net, time.monotonic()
        self.ready: set[str] = set()
        self.refused: dict[str, str] = {}
        self._renew_s = renew_s
        self._group: asyncio.TaskGroup | None = None
        counted = Counted(net, ledger)
        self._guarded = Guarded(counted, kept.roster, asking.MESSAGES)
        messages = kept.method.can.messages
        self.lanes = Lanes(counted, lanes_to(net.me, kept.roster, messages), heard=heard, renew_s=renew_s)

    @property
    def others(self) -> list[str]:
        """All other parties."""
        return [name for name in self.kept.roster.names if name != self.kept.me]

    @property
    def there(self) -> set[str]:
        """The parties that can be asked now."""
        return self.ready - self.lanes.gone.keys()

    @property
    def met(self) -> set[str]:
        """The parties that have said hello, or will not."""
        return self.ready | self.refused.keys() | self.lanes.gone.keys()

    @property
    def unfit(self) -> set[str]:
        """The parties that cannot serve as they are: refused, or gone without a hello, as by an error of theirs."""
        return self.refused.keys() | (self.lanes.gone.keys() - self.ready)

    def why_not(self, party: str) -> str:
        """Return why a party cannot be asked; empty if it can."""
        if party in self.refused:
            return self.refused[party]
        if party in self.lanes.gone:
            return self.lanes.gone[party]
        return "" if party in self.ready else ABSENT

    async def run(self) -> None:
        """Read what comes, until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for name in self.others:
                self._group.create_task(self._greet(name))
            self._group.create_task(self.lanes.run())

    def again(self, party: str) -> None:
        """Greet a party that was lost and is there again, as another process."""
        assert self._group is not None
        self._group.create_task(self._begin_again(party))

    async def _begin_again(self, party: str) -> None:
        self.ready.discard(party)
        self.refused.pop(party, None)
        await asyncio.sleep(SETTLED_S)
        self.lanes.again(party)
        await self._greet(party)

    async def ask(self, ask: Ask, parties: Sequence[str]) -> None:
        """Send a request to these parties."""
        for name in parties:
            await asking.send(self._guarded, name, self.kept.roster, ask)

    async def end(self) -> None:
        """Tell everybody that nothing more will be asked."""
        for name in self.others:
            with contextlib.suppress(PartyLost):
                await asking.end(self._guarded, name, self.kept.roster)

    async def _greet(self, name: str) -> None:
        while True:
            try:
                async with asyncio.timeout(self._renew_s):
                    unlike = await asking.differs(self._guarded, name, self.kept.expected(name))
                break
            except TimeoutError:
                continue
            except MessageError as error:
                self.refused[name] = f"what it sent was refused: {error}"
                return
            except PartyLost as error:
                self.lanes.lose(name, str(error).removeprefix(f"party {name!r} is gone: "))
                return
        if unlike:
            verb = "does" if len(unlike) == 1 else "do"
            self.refused[name] = f"its {' and '.join(unlike)} {verb} not fit what {self.kept.me!r} serves"
        else:
            self.ready.add(name)
