"""Private alignment: find common rows without showing ids to other parties.

After C. Meadows: "A More Efficient Cryptographic Matchmaking Protocol", S&P 1986, and B. A. Huberman, M. Franklin,
T. Hogg: "Enhancing privacy and trust in electronic communities", EC 1999, for K parties.  Two differences: every list
makes its round under a one-time scalar, and only the active party sees tokens.

Letters   H(id)  the id as a point (``curve``)        token  H(id) times s_1 s_2 ... s_K: equal for equal ids
          s_k    party k's secret scalar              r_k    its one-time scalar for its own list; r_k t_k = s_k

    1. Every party sends its number of rows and a fingerprint of the terms (salt, batch, parties) to all others.
    2. Party k permutes its ids secretly and sends r_k H(id) on a round. The other parties, in the roster's order from
       k, each multiply by their s_j, and the list returns. Passive parties' lists skip the active party.
    3. Party k multiplies by t_k, which replaces r_k by s_k, and sends the list to the active party a, which multiplies
       by s_a. The results are tokens.
    4. The active party joins the tokens. Rows are sorted by their tokens' bytes, an order that looks random and changes
       with the secrets. It sends every party N, the row of each point of its list, and whether other parties know
       hardly any of its ids. The party undoes its secret permutation.

Disclosure (parties follow the protocol, and may then pool their knowledge)
    *All parties* learn the number of rows of each party, and N. For two parties this is the number of common rows.
    *A passive party* learns the places of its own rows among the N, and whether other parties know under 1 % of them.
    It sees others' ids as points under their owner's one-time scalar, a different one for every list. All passive
    parties together can neither compare two lists nor test an id (decisional Diffie-Hellman, H a random oracle). They
    can compare the places of their own rows and learn which they share, as they could by comparing ids.
    *The active party* learns which parties hold each of the N rows, and which of these are its own. For a row that it
    does not hold, it has a token only: testing an id requires every other party's scalar. Together with some passive
    parties it learns which of their rows the remaining ones hold, and nothing about ids that none of them holds. If its
    site relays messages between passive parties, it learns nothing more.
    *No party* learns an id, its hash, its length or its form, or the order of rows in a table.

Limits: a party that lists guessed ids learns about them the same as about its own (the active party: which others hold
them; a passive one: whether hardly any other does). The sizes, fixed in step 1, bound the number of guesses. A party
that sends wrong points or places spoils the result; nothing is proven about what it learns. Channels must be private:
a reader of all of them learns the pattern of presence, but no id.
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

from anyparty.alignment.rounds import BlindingProgress, Rounds
from anyparty.alignment.x25519 import SIZE, Secret
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import AlignmentError, ConfigError, MessageError, remark, some
from anyparty.tables import cells

MESSAGES = (
    MessageSpec(
        tag="align-terms",
        frm="any",
        to="any",
        holds="how many rows the party has, and a hash of salt, batch and parties",
        learns="how many rows each party has",
    ),
    MessageSpec(
        tag="align-ids",
        frm="any",
        to="any",
        holds="a party's ids as points on an elliptic curve, shuffled and blinded with a one-time scalar; only the "
        "party knows the order and the scalar",
        learns="nothing but the number of ids, even from all lists together; testing a guessed id requires the "
        "owner's help",
    ),
    MessageSpec(
        tag="align-tokens",
        frm="passive",
        to="active",
        holds="the sender's ids as points blinded with the secret scalars of all parties but the receiver, in the "
        "sender's order",
        learns="which rows are the same at which parties, but not the ids of rows that it does not hold itself; "
        "testing a guessed id requires every party's help",
    ),
    MessageSpec(
        tag="align-union",
        frm="active",
        to="passive",
        holds="how many rows at least one party has, and whether under 1 % of the receiver's are known to others",
        learns="both; with two parties, that is how many rows they share",
    ),
    MessageSpec(
        tag="align-positions",
        frm="active",
        to="passive",
        holds="the index of each of the receiver's own rows among all rows, sorted by secret tokens",
        learns="nothing about others' rows, unless parties compare their indices: then which rows they share",
    ),
)

BATCH = 65_536
FEW = 0.01


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivateAlignment:
    """One party's result of a private alignment of N rows.

    Attributes:
        party: the party.
        parties: all parties, in the roster's order.
        n: N.
        position: [N] int64: the party's own row of aligned row n, -1 if it does not hold the row.
        present: [N, parties] bool: which party holds which row; ``None`` at passive parties.
        key: [N] int64: a number derived from the row's token; ``None`` at passive parties. The active party must keep
            it secret. It changes with the secrets.
    """

    party: str
    parties: tuple[str, ...]
    n: int
    position: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None
    key: NDArray[np.int64] | None = None

    def observed(self, blocks: Sequence[str]) -> NDArray[np.bool_]:
        """Return which of the parties ``blocks`` holds which row, [N, K] bool; at the active party only."""
        if self.present is None:
            raise AlignmentError(
                f"party {self.party!r} knows its own rows only; the active party knows which party holds which row"
            )
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
    progress: BlindingProgress | None = None,
) -> PrivateAlignment:
    """Run the protocol for the party ``net.me``; all parties of the roster run it at the same time.

    Args:
        net: the party's channel to the others.
        roster: the parties, the same at every party.
        ids: [n_k], the party's own ids, compared as trimmed text as in its ``Table``.
        salt: public and specific to the federation, the same at every party.
        secret: 32 bytes that determine all secrets, for tests; by default from the operating system.
        batch: the number of ids in a message, the same at every party.
        apart: accept parties that share no id, as in prediction.
        progress: called after each step of this party's work.

    Warns:
        UserWarning: other parties know under 1 % of a party's ids. The party and the active one warn.

    Raises:
        AlignmentError: an id is missing or repeated, or (at every party) no id is known to two parties.
        ConfigError: the parties have different salts, batches or rosters.
        MessageError: another party sent an impossible message.
        PartyLost: another party left.
    """
    own = _checked(ids, net.me)
    sizes = await _exchange_sizes(net, roster, len(own), f"{salt}\n{batch}\n{apart}\n{roster}")
    hidden = Secret.of(secret)
    order = await asyncio.to_thread(hidden.order, len(own))
    pool = ThreadPoolExecutor(os.cpu_count(), "align")
    try:
        lists = await Rounds(net, roster, hidden, own.gather(order), salt, sizes, batch, pool, progress).play()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    union = await asyncio.to_thread(_TokenUnion.of, lists) if net.me == roster.active else None
    n, rows, few = await (
        _receive_rows(net, roster, sizes, batch) if union is None else _send_rows(net, union, sizes, batch)
    )
    _check_overlap(own, net.me, sizes, n, few, apart=apart)
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
    """Return the ids as trimmed text; reject missing and repeated ones."""
    own = cells.as_text(ids if isinstance(ids, pl.Series) else pl.Series(values=list(ids), dtype=pl.String))
    if own.null_count():
        rows = some((row + 1 for row in own.is_null().arg_true()), 5)
        raise AlignmentError(f"party {me!r}: there is no id in row {rows}; give each row one, or leave it out")
    if own.n_unique() < len(own):
        twice = own.filter(own.is_duplicated()).unique(maintain_order=True)
        raise AlignmentError(f"party {me!r}: each id must occur once, but {some(twice)} occur more often")
    return own


async def _exchange_sizes(net: Channel, roster: Roster, size: int, terms: str) -> dict[str, int]:
    """Send the party's own size and terms to all others; return every party's size, in the roster's order."""
    others = [name for name in roster.names if name != net.me]
    fingerprint = torch.frombuffer(bytearray(hashlib.sha256(terms.encode()).digest()), dtype=torch.uint8)
    for name in others:
        await net.send(name, "align-terms", {"rows": torch.tensor([size]), "terms": fingerprint})
    sizes = dict.fromkeys(roster.names, size)
    expect = {"rows": TensorSpec((1,), torch.int64), "terms": TensorSpec((SIZE,), torch.uint8)}
    for name in others:
        received = await net.recv(name, "align-terms", expect)
        if not torch.equal(received["terms"], fingerprint):
            raise ConfigError(f"party {name!r} has another salt, batch, list of parties or value of 'apart' for the "
                              f"alignment than {net.me!r}; give both the same settings")  # fmt: skip
        sizes[name] = int(received["rows"])
        if sizes[name] < 0:
            raise MessageError(f"party {name!r} reports {sizes[name]} rows")
    return sizes


@dataclass(frozen=True, eq=False)
class _TokenUnion:
    """The join of all parties' tokens: row n has the n-th token in the order of bytes.

    Attributes:
        n: N.
        rows: by party, the row of each token of its list, in the list's order [n_k].
        key: [N] int64, from bytes of the token that hardly affect the order.
    """

    n: int
    rows: dict[str, NDArray[np.int64]]
    key: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Mapping[str, bytes]) -> _TokenUnion:
        tokens = np.frombuffer(b"".join(lists.values()), dtype=f"S{SIZE}")
        union, first, row = np.unique(tokens, return_index=True, return_inverse=True)
        ends = np.cumsum([len(each) // SIZE for each in lists.values()])
        rows = dict(zip(lists, np.split(row.astype(np.int64), ends[:-1]), strict=True))
        for name, own in rows.items():
            if len(np.unique(own)) < len(own):
                raise MessageError(f"the list of party {name!r} contains the same token twice; each id must occur once")
        words = tokens.view("<u8").reshape(-1, SIZE // 8)[first, 1]
        return cls(len(union), rows, (words >> np.uint64(1)).astype(np.int64))

    def present(self) -> NDArray[np.bool_]:
        """Return which party holds which row: [N, parties] bool."""
        out = np.zeros((self.n, len(self.rows)), dtype=np.bool_)
        for k, rows in enumerate(self.rows.values()):
            out[rows, k] = True
        return out

    def few(self) -> list[str]:
        """Return the parties that share under 1 % of the rows that they could share."""
        shared = self.present().sum(axis=1) > 1
        total = sum(map(len, self.rows.values()))
        most = {name: min(len(rows), total - len(rows)) for name, rows in self.rows.items()}
        return [name for name, rows in self.rows.items() if shared[rows].sum() < FEW * most[name]]


async def _send_rows(
    net: Channel, union: _TokenUnion, sizes: Mapping[str, int], batch: int
) -> tuple[int, NDArray[np.int64], list[str]]:
    """Send every party N and the rows of its list; return the active party's own."""
    few = union.few()
    for name in sizes:
        if name != net.me:
            summary = {"rows": torch.tensor([union.n]), "few": torch.tensor([name in few], dtype=torch.uint8)}
            await net.send(name, "align-union", summary)
    for at in range(0, max(sizes.values()), batch):
        for name in sizes:
            if name != net.me and at < sizes[name]:
                rows = torch.from_numpy(union.rows[name][at : at + batch])
                await net.send(name, "align-positions", {"rows": rows})
    return union.n, union.rows[net.me], few


async def _receive_rows(
    net: Channel, roster: Roster, sizes: Mapping[str, int], batch: int
) -> tuple[int, NDArray[np.int64], list[str]]:
    """Receive N and the rows of the party's own list from the active party."""
    me, active = net.me, roster.active
    expect = {"rows": TensorSpec((1,), torch.int64), "few": TensorSpec((1,), torch.uint8)}
    summary = await net.recv(active, "align-union", expect)
    n = int(summary["rows"])
    if not max(sizes.values()) <= n <= sum(sizes.values()):
        raise MessageError(f"party {active!r} reports {n} distinct rows for lists of {list(sizes.values())} rows")
    parts = [np.empty(0, dtype=np.int64)]
    for at in range(0, sizes[me], batch):
        expect = {"rows": TensorSpec((min(batch, sizes[me] - at),), torch.int64)}
        parts.append((await net.recv(active, "align-positions", expect))["rows"].numpy())
    rows = np.concatenate(parts)
    if len(np.unique(rows)) < sizes[me] or (len(rows) and not 0 <= rows.min() <= rows.max() < n):
        raise MessageError(
            f"party {active!r} sent invalid indices for the rows of {me!r}: expected {sizes[me]} "
            f"different indices below {n}"
        )
    return n, rows, [me] if summary["few"].any() else []


def _check_overlap(
    own: pl.Series, me: str, sizes: Mapping[str, int], n: int, few: Sequence[str], *, apart: bool
) -> None:
    """Reject parties that share no id; warn if they share hardly any. Messages quote the party's own ids."""
    examples = (
        f"Ids of {me} look like this: {some(own.sort().head(2))}. Ask the other parties whether theirs are written the "
        f"same way (upper and lower case, leading zeros, blanks and dashes)"
    )
    if not len(own):
        examples = f"All rows of {me} are empty"
    if len(sizes) > 1 and n == sum(sizes.values()) and not apart:
        raise AlignmentError(f"no id is known to two parties, so there is nothing to learn together. {examples}")
    if few:
        remark(f"under {FEW:.0%} of the ids of {some(few)} are known to any other party. {examples}")
