"""Private alignment: which rows are the same, for parties that may not show each other their ids.

After C. Meadows: "A More Efficient Cryptographic Matchmaking Protocol", S&P 1986, and B. A. Huberman, M. Franklin,
T. Hogg: "Enhancing privacy and trust in electronic communities", EC 1999, for K parties.  What differs: every list
makes its round under a one-time scalar, and one party alone, the active one, sees tokens.

Letters   H(id)  the id as a point (``curve``)        token  H(id) times s_1 s_2 ... s_K: equal for equal ids
          s_k    party k's secret scalar              r_k    its one-time scalar for its own list; r_k t_k = s_k

    1. All tell all how many rows they have, and a fingerprint of the terms: salt, batch, parties.
    2. Party k puts its ids in a secret order, and sends r_k H(id) around: the other parties, in the roster's order
       from k, each multiply by their s_j, and the list comes home.  Passive parties' lists pass by the active party.
    3. Home again, party k multiplies by t_k, which replaces r_k by s_k, and gives the list to the active party a, who
       multiplies by s_a: tokens.
    4. The active party joins the tokens.  Rows are in the order of their tokens' bytes, which is as good as random and
       changes with the secrets.  It tells every party N, and for every point of its list, in the order it came, the
       row; and whether hardly any of its ids are known to others.  The party undoes its secret order.

Who sees what (parties that keep to the protocol, and may then put their heads together)
    *Everybody*: how many rows each party has, and N.  With two parties, that is how many they share.
    *A passive party*: the places of its own rows among the N, and whether under 1 % of them are known to anybody else.
    Of others' ids it sees points under their owner's one-time scalar, every list under another: all passive parties
    together can neither compare two lists nor try an id (decisional Diffie-Hellman, H a random oracle).  They can
    compare the places of their own rows, and so learn which they share, as they would by comparing ids.
    *The active party*: which parties have each of the N rows, and which of them are its own.  Of a row that it does not
    hold it has a token and no more: to try an id it needs every other party's scalar.  Together with some passive
    parties it learns which of their rows the remaining ones have, and nothing of ids that none of them holds.  If its
    site relays what passive parties send each other, that adds nothing.
    *Nobody*: an id, its hash, its length or its form, or the order of rows in a table.

What it does not stop: a party that lists ids it only guesses learns about those what it would learn about its own (the
active party, who else has them; a passive one, whether hardly anybody does).  The sizes, fixed in step 1, bound how
many it can try.  A party that sends wrong points or places spoils the result; nothing is proven here about what it
learns.  Channels must be private: who reads them all learns the pattern of presence, though no id.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.align.curve import SIZE, Secret
from anyparty.align.rounds import Progress, Rounds
from anyparty.errors import AlignmentError, ConfigError, MessageError, remark, some
from anyparty.tables import cells
from anyparty.terms import Channel, Declared, Expect, Roster

MESSAGES = (
    Declared(tag="align-terms", frm="any", to="any",
             holds="how many rows the party has, and a hash of salt, batch and parties",
             learns="how many rows each party has"),
    Declared(tag="align-ids", frm="any", to="any",
             holds="a party's ids as points on a curve, in an order and under a one-time scalar that only it knows",
             learns="nothing beyond how many there are, from all lists together; to try an id takes the owner's help"),
    Declared(tag="align-tokens", frm="passive", to="active",
             holds="the sender's ids as points under the secret scalars of all parties but the receiver, in its order",
             learns="which rows are the same at which parties; of a row that it does not hold itself, not the id, "
                    "which to try takes every party's help"),
    Declared(tag="align-union", frm="active", to="passive",
             holds="how many rows at least one party has, and whether under 1 % of the receiver's are known to others",
             learns="both; with two parties, that is how many rows they share"),
    Declared(tag="align-positions", frm="active", to="passive",
             holds="the place of each of the receiver's own rows among all, in an order by secret tokens",
             learns="nothing about others' rows, unless parties compare their places: then which of them they share"),
)  # fmt: skip

BATCH = 65_536
FEW = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivateAlignment:
    """What one party knows of N aligned rows.

    Attributes:
        party: whose knowledge it is.
        parties: all parties, in the roster's order.
        n: N.
        position: [N] int64: the party's own row of row n, -1 where it does not know the row.
        present: [N, parties] bool: who has which row; ``None`` but at the active party.
        key: [N] int64: a number that belongs to the row, of its token; ``None`` but at the active party, which must
            keep it to itself.  It changes with the secrets.
    """

    party: str
    parties: tuple[str, ...]
    n: int
    position: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None
    key: NDArray[np.int64] | None = None

    def observed(self, blocks: Sequence[str]) -> NDArray[np.bool_]:
        """Return who of ``blocks`` has which row [N, K], at the active party."""
        if self.present is None:
            raise AlignmentError(f"party {self.party!r} knows its own rows only; who has which, the active party knows")
        return self.present[:, [self.parties.index(name) for name in blocks]]


async def align(
    net: Channel,
    roster: Roster,
    ids: pl.Series | Sequence[str],
    *,
    salt: str,
    secret: bytes | None = None,
    batch: int = BATCH,
    apart: bool = False,
    progress: Progress | None = None,
) -> PrivateAlignment:
    """Play the part of the party ``net.me``; all parties of the roster play theirs at the same time.

    Args:
        net: the party's way to the others.
        roster: the parties, the same everywhere.
        ids: [n_k], the party's own, compared as trimmed text as in its ``Table``.
        salt: public, of this federation, the same everywhere.
        secret: 32 bytes that fix all secrets, for tests; from the operating system if not given.
        batch: ids in a message, the same everywhere.
        apart: admit parties that share no id, as when a model predicts.
        progress: told of this party's own work.

    Warns:
        UserWarning: under 1 % of a party's ids are known to another: at that party, and at the active one.

    Raises:
        AlignmentError: an id that is missing or there twice, or, at every party, no id that two of them have.
        ConfigError: another party's salt, batch or roster is another.
        MessageError: what another party sent cannot be right.
        PartyLost: another party left.
    """
    own = _checked(ids, net.me)
    sizes = await _meet(net, roster, len(own), f"{salt}\n{batch}\n{apart}\n{roster}")
    hidden = Secret.of(secret)
    order = await asyncio.to_thread(hidden.order, len(own))
    pool = ThreadPoolExecutor(os.cpu_count(), "align")
    try:
        lists = await Rounds(net, roster, hidden, own.gather(order), salt, sizes, batch, pool, progress).play()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    union = await asyncio.to_thread(_Union.of, lists) if net.me == roster.active else None
    n, rows, few = await (_hear(net, roster, sizes, batch) if union is None else _tell(net, union, sizes, batch))
    _judge(own, net.me, sizes, n, few, apart=apart)
    position = np.full(n, -1, dtype=np.int64)
    position[rows] = order
    return PrivateAlignment(
        party=net.me,
        parties=roster.names,
        n=n,
        position=position,
        present=None if union is None else union.present(),
        key=None if union is None else union.key,
    )


def _checked(ids: pl.Series | Sequence[str], me: str) -> pl.Series:
    """Return the ids as trimmed text, each there once."""
    own = cells.as_text(ids if isinstance(ids, pl.Series) else pl.Series(values=list(ids), dtype=pl.String))
    if own.null_count():
        rows = some((row + 1 for row in own.is_null().arg_true()), 5)
        raise AlignmentError(f"party {me!r}: there is no id in row {rows}; give each row one, or leave it out")
    if own.n_unique() < len(own):
        twice = own.filter(own.is_duplicated()).unique(maintain_order=True)
        raise AlignmentError(f"party {me!r}: each id must be there once, but {some(twice)} are there more often")
    return own


async def _meet(net: Channel, roster: Roster, size: int, terms: str) -> dict[str, int]:
    """Tell everybody one's own size, and return every party's, in the roster's order."""
    others = [name for name in roster.names if name != net.me]
    print_ = torch.frombuffer(bytearray(hashlib.sha256(terms.encode()).digest()), dtype=torch.uint8)
    for name in others:
        await net.send(name, "align-terms", {"rows": torch.tensor([size]), "terms": print_})
    sizes = dict.fromkeys(roster.names, size)
    expect = {"rows": Expect((1,), torch.int64), "terms": Expect((SIZE,), torch.uint8)}
    for name in others:
        heard = await net.recv(name, "align-terms", expect)
        if not torch.equal(heard["terms"], print_):
            raise ConfigError(f"party {name!r} would align with another salt, batch or list of parties than {net.me!r} "
                              f"(or with apart set otherwise); give both the same")  # fmt: skip
        sizes[name] = int(heard["rows"])
        if sizes[name] < 0:
            raise MessageError(f"party {name!r} says that it has {sizes[name]} rows")
    return sizes


@dataclass(frozen=True, eq=False)
class _Union:
    """All parties' tokens joined: row n is the n-th token, by its bytes.

    Attributes:
        n: N.
        rows: by party, the row of each token of its list, in the list's order [n_k].
        key: [N] int64, of bytes of the token that hardly touch the order.
    """

    n: int
    rows: dict[str, NDArray[np.int64]]
    key: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Mapping[str, bytes]) -> _Union:
        tokens = np.frombuffer(b"".join(lists.values()), dtype=f"S{SIZE}")
        union, first, row = np.unique(tokens, return_index=True, return_inverse=True)
        ends = np.cumsum([len(each) // SIZE for each in lists.values()])
        rows = dict(zip(lists, np.split(row.astype(np.int64), ends[:-1]), strict=True))
        for name, own in rows.items():
            if len(np.unique(own)) < len(own):
                raise MessageError(f"the list of party {name!r} came with one token twice; each id must be there once")
        words = tokens.view("<u8").reshape(-1, SIZE // 8)[first, 1]
        return cls(len(union), rows, (words >> np.uint64(1)).astype(np.int64))

    def present(self) -> NDArray[np.bool_]:
        """Return who has which row [N, parties]."""
        out = np.zeros((self.n, len(self.rows)), dtype=np.bool_)
        for k, rows in enumerate(self.rows.values()):
            out[rows, k] = True
        return out

    def few(self) -> list[str]:
        """Return the parties of whose rows, of those that could be shared, under 1 % are known to any other."""
        shared = self.present().sum(axis=1) > 1
        total = sum(map(len, self.rows.values()))
        most = {name: min(len(rows), total - len(rows)) for name, rows in self.rows.items()}
        return [name for name, rows in self.rows.items() if shared[rows].sum() < FEW * most[name]]


async def _tell(
    net: Channel, union: _Union, sizes: Mapping[str, int], batch: int
) -> tuple[int, NDArray[np.int64], list[str]]:
    """Tell every party N and the rows of its own list; return one's own."""
    few = union.few()
    for name in sizes:
        if name != net.me:
            told = {"rows": torch.tensor([union.n]), "few": torch.tensor([name in few], dtype=torch.uint8)}
            await net.send(name, "align-union", told)
    for at in range(0, max(sizes.values()), batch):
        for name in sizes:
            if name != net.me and at < sizes[name]:
                rows = torch.from_numpy(union.rows[name][at : at + batch])
                await net.send(name, "align-positions", {"rows": rows})
    return union.n, union.rows[net.me], few


async def _hear(
    net: Channel, roster: Roster, sizes: Mapping[str, int], batch: int
) -> tuple[int, NDArray[np.int64], list[str]]:
    """Hear N and the rows of one's own list from the active party."""
    me, active = net.me, roster.active
    one = {"rows": Expect((1,), torch.int64), "few": Expect((1,), torch.uint8)}
    told = await net.recv(active, "align-union", one)
    n = int(told["rows"])
    if not max(sizes.values()) <= n <= sum(sizes.values()):
        raise MessageError(f"party {active!r} says that {list(sizes.values())} rows are {n} different ones")
    parts = [np.empty(0, dtype=np.int64)]
    for at in range(0, sizes[me], batch):
        expect = {"rows": Expect((min(batch, sizes[me] - at),), torch.int64)}
        parts.append((await net.recv(active, "align-positions", expect))["rows"].numpy())
    rows = np.concatenate(parts)
    if len(np.unique(rows)) < sizes[me] or (len(rows) and not 0 <= rows.min() <= rows.max() < n):
        raise MessageError(f"party {active!r} gave the rows of {me!r} places that are not {sizes[me]} of {n}")
    return n, rows, [me] if told["few"].any() else []


def _judge(own: pl.Series, me: str, sizes: Mapping[str, int], n: int, few: Sequence[str], *, apart: bool) -> None:
    """Refuse parties that share nothing, and warn where they share hardly anything, with one's own ids as examples."""
    looks = (
        f"Ids of {me} look like this: {some(own.sort().head(2))}. Ask the other parties whether theirs are written the "
        f"same way (upper and lower case, leading zeros, blanks and dashes)"
    )
    if not len(own):
        looks = f"No row of {me} has a cell"
    if len(sizes) > 1 and n == sum(sizes.values()) and not apart:
        raise AlignmentError(f"no id is known to two parties, so there is nothing to learn together. {looks}")
    if few:
        remark(f"under {FEW:.0%} of the ids of {some(few)} are known to any other party. {looks}")
