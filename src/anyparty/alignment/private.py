"""Private alignment: find common rows without showing ids to other parties.

The protocol follows C. Meadows: "A More Efficient Cryptographic Matchmaking Protocol", S&P 1986, and B. A. Huberman,
M. Franklin, T. Hogg: "Enhancing privacy and trust in electronic communities", EC 1999. It is extended to K parties, and
differs from these papers in two respects. Each party blinds its list of points with a one-time scalar before it passes
the list to other parties. Only the active party sees tokens.

Notation  K      the number of parties
          N      the number of rows: distinct ids that at least one party holds
          H(id)  the id as a point on a curve (``x25519``)
          s_k    party k's secret scalar
          r_k    party k's one-time scalar for its own list of points; t_k is the scalar with r_k t_k = s_k
          token  H(id) times s_1 s_2 ... s_K, which is equal for equal ids

    1. Every party sends its number of ids and a hash of the settings for alignment to all other parties.
    2. Party k permutes its ids secretly, and sends its list of points r_k H(id) to the next party in the roster's
       order. Each party j multiplies the points by s_j and sends them on. The last party returns the list to party k.
       The lists of passive parties skip the active party.
    3. Party k multiplies the points by t_k, which replaces r_k by s_k, and sends the list to the active party a. Party
       a multiplies the points of other parties by s_a. The results are tokens.
    4. The active party joins the tokens, and sorts the rows by their tokens' bytes. This order looks random, and
       changes with the secrets. The active party sends three facts to each party: the number N, the row of each point
       in the party's list, and whether other parties know hardly any of the party's ids. Each party undoes its secret
       permutation.

Disclosure (if parties follow the protocol, but may later combine their knowledge)
    *All parties* learn the number of ids of each party, and N. With two parties, these give the number of common rows.
    *A passive party* learns the places of its own rows among the N rows, and whether other parties know under 1 % of
    its ids. It sees other parties' ids as points under their owner's one-time scalar, which differs between lists. All
    passive parties together can neither compare two lists nor test an id (if decisional Diffie-Hellman is hard, and H
    is a random oracle). They can compare the places of their own rows, and learn which rows they share. Comparing ids
    would reveal the same.
    *The active party* learns which parties hold each of the N rows, and which of these rows are its own. For a row that
    it does not hold, it only has a token. To test an id against this token, it needs every other party's scalar. If it
    cooperates with some passive parties, it learns which of their rows the remaining parties hold, but nothing about
    ids that none of the cooperating parties holds. If its site relays messages between passive parties, it learns
    nothing more.
    *No party* learns an id that it does not hold, the hash, length or form of such an id, or the order of rows in
    another party's table.

Limits: a party can put guessed ids into its own list. It learns the same about them as about its other ids. The active
party learns which other parties hold each guessed id. A passive party learns only whether other parties know under 1 %
of its whole list. The numbers of ids, fixed in step 1, limit the number of guesses. A party that sends wrong points or
wrong places spoils the result. It is not proven what such a party learns. Channels must be private: an outsider who can
read all channels learns the pattern of presence of each row, but no id.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from anyparty.alignment import alignment_state
from anyparty.alignment.alignment_state import AlignmentState, ListPlan, plan_alone, plan_with_state
from anyparty.alignment.rounds import FEW, BlindingProgress, Rounds, TokenUnion, each_once
from anyparty.alignment.x25519 import SIZE, random_order
from anyparty.core.types import Channel, MessageSpec, Roster, TensorSpec
from anyparty.errors import AlignmentError, ConfigError, MessageError, remark, some
from anyparty.tables import cells
from anyparty.tables.ids import JOINT, NORMALIZATIONS, check_normalize, normalized, shown

MOST_COLUMNS = 8  # ``other_with`` tries settings with at most this many id columns


@dataclass(frozen=True)
class IdTerms:
    """The settings that determine how a party's ids are made from the cells of its table.

    Attributes:
        normalize: the changes that are made to each id, such as "strip-zeros".
        columns: the number of id columns.
    """

    normalize: tuple[str, ...] = ()
    columns: int = 1

    @classmethod
    def of(cls, ids: pl.Series, normalize: Sequence[str]) -> IdTerms:
        """Return the settings of a party with the given ids and the given changes ``normalize``."""
        return cls(check_normalize(normalize), 1 if not len(ids) else str(ids[0]).count(JOINT) + 1)

    def __str__(self) -> str:
        """Describe these settings, for error messages."""
        columns = f" and {self.columns} id columns" if self.columns > 1 else ""
        return f"id_normalize = {list(self.normalize)}{columns}"

    def text(self) -> str:
        """Return these settings as text, to be hashed; "" for one id column without changes."""
        return "" if self == IdTerms() else f"\n{','.join(self.normalize)}\n{self.columns}"

    def other_with(self, is_hash_of: Callable[[str], bool]) -> IdTerms | None:
        """Find another party's settings from their hash, for an error message.

        All possible settings are tried. ``is_hash_of`` returns True if the hash belongs to the given text. The result
        is ``None`` if no settings have this hash.
        """
        return next((terms for terms in _every() if terms != self and is_hash_of(terms.text())), None)


def _every() -> Iterator[IdTerms]:
    for columns in range(1, MOST_COLUMNS + 1):
        for count in range(len(NORMALIZATIONS) + 1):
            for changes in combinations(NORMALIZATIONS, count):
                yield IdTerms(changes, columns)


MESSAGES = (
    MessageSpec(
        tag="align-terms",
        frm="any",
        to="any",
        holds="how many rows the party has, and a hash of the settings for alignment: the salt, the batch size, the "
        "parties and id_normalize",
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
        learns="which parties have which row, but not the ids of rows that the receiver does not hold itself; testing "
        "a guessed id requires every party's help",
    ),
    MessageSpec(
        tag="align-union",
        frm="active",
        to="passive",
        holds="how many different rows all parties have together, and whether other parties know under 1 % of the "
        "receiver's rows",
        learns="the number of different rows, from which two parties can compute how many rows they share; and whether "
        "other parties know under 1 % of its own rows",
    ),
    MessageSpec(
        tag="align-positions",
        frm="active",
        to="passive",
        holds="the index of each of the receiver's own rows among all rows, sorted by secret tokens",
        learns="nothing about the rows of other parties; passive parties that compare their indices learn which rows "
        "they share",
    ),
    *alignment_state.MESSAGES,
)

BATCH = 65_536


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivateAlignment:
    """One party's result of a private alignment of N rows.

    Attributes:
        party: the party.
        parties: all parties, in the roster's order.
        n: N.
        position: [N] int64: the index of the party's own row for aligned row n; -1 if the party does not hold the row.
        present: [N, parties] bool: True if the party holds the row; ``None`` at passive parties.
        key: [N] int64: a number derived from the row's token; ``None`` at passive parties. The active party must keep
            the keys secret. New secrets give new keys.
    """

    party: str
    parties: tuple[str, ...]
    n: int
    position: NDArray[np.int64]
    present: NDArray[np.bool_] | None = None
    key: NDArray[np.int64] | None = None

    def observed(self, blocks: Sequence[str]) -> NDArray[np.bool_]:
        """Return the mask [N, K]: True if row n is held by the k-th party in the list ``blocks``.

        Raises:
            AlignmentError: this is a passive party, which knows only its own rows.
        """
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
    normalize: Sequence[str] = (),
    progress: BlindingProgress | None = None,
    state: Path | None = None,
) -> PrivateAlignment:
    """Run the private alignment as the party ``net.me``; all parties of the roster run it at the same time.

    Args:
        net: the party's channel to the other parties.
        roster: the parties; every party must pass an equal roster.
        ids: [n_k], the party's own ids, compared as trimmed text as in its ``Table``.
        salt: a public text that is specific to the federation; every party must pass the same text.
        secret: 32 bytes that determine all secrets, for tests; by default they come from the operating system.
        batch: the number of ids in a message; every party must pass the same number.
        apart: whether the parties are allowed to share no id, as in prediction; every party must pass the same value.
        normalize: the changes to make to each id, such as "strip-zeros"; every party must pass the same changes.
        progress: a function that is called during the alignment, with the number of points that this party has blinded
            until now, and the total number.
        state: a folder on the party's own disk that keeps the party's state between alignments; by default, nothing is
            stored. If all parties keep their folders, the next alignment continues an interrupted one, or processes
            only new ids. No other process may use the folder during the alignment.

    Warns:
        UserWarning: other parties know under 1 % of a party's ids. The warning is issued at this party and at the
            active party.

    Raises:
        AlignmentError: an id of this party is missing or repeated, or no id is known to two parties.
        ConfigError: the parties have different salts, batches, rosters, changes of ids or numbers of id columns. In
            this case, no ids have been sent.
        MessageError: another party sent a message with impossible values.
        PartyLost: another party left.
        StorageError: ``state`` cannot be written.
    """
    own = await asyncio.to_thread(_checked, ids, net.me, normalize)
    common = f"{salt}\n{batch}\n{apart}\n{roster}" + ("" if state is None else "\nstate")
    id_terms = IdTerms.of(own, normalize)
    sizes = await _exchange_sizes(net, roster, len(own), common, id_terms)
    plan = await (
        plan_alone(net, roster, sizes, secret)
        if state is None
        else plan_with_state(net, roster, own, sizes, AlignmentState.load(state, _hash(f"{salt}\n{roster}")), secret)
    )
    await _play(net, roster, own, plan, salt=salt, batch=batch, progress=progress)
    union = await asyncio.to_thread(_union, plan) if plan.tokens is not None else None
    n, rows, few = await (
        _receive_rows(net, roster, sizes, batch) if union is None else _send_rows(net, union, sizes, batch)
    )
    _check_overlap(own, net.me, sizes, n, few, apart=apart)
    position = np.full(n, -1, dtype=np.int64)
    position[rows] = plan.rows[plan.rows >= 0]
    return PrivateAlignment(
        party=net.me,
        parties=roster.names,
        n=n,
        position=position,
        present=None if union is None else union.present(),
        key=None if union is None else union.key,
    )


async def _play(
    net: Channel,
    roster: Roster,
    own: pl.Series,
    plan: ListPlan,
    *,
    salt: str,
    batch: int,
    progress: BlindingProgress | None,
) -> None:
    """Pass the list entries that need tokens from party to party; the active party stores the tokens in ``plan``."""
    listed, pool = own.gather(plan.rows[plan.start[net.me] :]), ThreadPoolExecutor(os.cpu_count(), "align")
    try:
        await Rounds(net, roster, plan.secret, listed, salt, plan.todo(), batch, pool, progress, plan.start).play(
            (lambda _, __: None) if plan.tokens is None else plan.tokens.append
        )
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _union(plan: ListPlan) -> TokenUnion:
    """Return the union of all parties' tokens, with its rows in random order if the secrets are not new.

    With the secrets of an earlier alignment, an id has the same token as before. If rows were sorted by tokens, the new
    indices of a party's earlier rows would therefore reveal between which of them other rows were added.
    """
    assert plan.tokens is not None
    union = plan.tokens.union().without(plan.left_out)
    return union.reordered(random_order(union.n)) if plan.continued else union


def _checked(ids: pl.Series | Sequence[str], me: str, normalize: Sequence[str]) -> pl.Series:
    """Return the ids as trimmed text with the changes ``normalize`` applied; reject missing and repeated ids."""
    own = cells.as_text(ids if isinstance(ids, pl.Series) else pl.Series(values=list(ids), dtype=pl.String))
    if own.null_count():
        rows = some((row + 1 for row in own.is_null().arg_true()), 5)
        raise AlignmentError(f"party {me!r}: there is no id in row {rows}; give each row one, or leave it out")
    own = normalized(own, normalize)
    if own.hash().n_unique() < len(own) and own.n_unique() < len(own):  # the hashes are faster to compare
        twice = map(shown, own.filter(own.is_duplicated()).unique(maintain_order=True))
        raise AlignmentError(f"party {me!r}: each id must occur once, but {some(twice)} occur more often")
    return own


async def _exchange_sizes(net: Channel, roster: Roster, size: int, common: str, id_terms: IdTerms) -> dict[str, int]:
    """Check by hashes that all parties use equal settings, and return every party's number of ids.

    The settings are ``common`` and ``id_terms``.
    """
    terms = common + id_terms.text()
    others = [name for name in roster.names if name != net.me]
    fingerprint = torch.frombuffer(bytearray(_hash(terms)), dtype=torch.uint8)
    for name in others:
        await net.send(name, "align-terms", {"rows": torch.tensor([size]), "terms": fingerprint})
    sizes = dict.fromkeys(roster.names, size)
    expect = {"rows": TensorSpec((1,), torch.int64), "terms": TensorSpec((SIZE,), torch.uint8)}
    for name in others:
        received = await net.recv(name, "align-terms", expect)
        if not torch.equal(received["terms"], fingerprint):
            digest = received["terms"].numpy().tobytes()
            if (other := id_terms.other_with(partial(_has_hash, digest, common))) is not None:
                raise ConfigError(f"party {name!r} aligns with {other}, and {net.me!r} with {id_terms}; write the same "
                                  "settings at both. No id was sent")  # fmt: skip
            raise ConfigError(f"party {name!r} has another salt, batch, list of parties or value of 'apart' for the "
                              f"alignment than {net.me!r}, or only one of them can continue an interrupted alignment; "
                              f"give both the same settings and the same version of anyparty")  # fmt: skip
        sizes[name] = int(received["rows"])
        if sizes[name] < 0:
            raise MessageError(f"party {name!r} reports {sizes[name]} rows")
    return sizes


def _has_hash(digest: bytes, common: str, id_terms: str) -> bool:
    return _hash(common + id_terms) == digest


def _hash(terms: str) -> bytes:
    return hashlib.sha256(terms.encode()).digest()


async def _send_rows(
    net: Channel, union: TokenUnion, sizes: Mapping[str, int], batch: int
) -> tuple[int, NDArray[np.int64], list[str]]:
    """Send each passive party the number of all rows, the indices of its own rows, and whether few of them are shared.

    Returns:
        The number of all rows, the indices of the active party's rows, and the names of parties that share few rows.
    """
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
    """Receive the message of ``_send_rows`` at a passive party.

    Returns:
        The number of all rows, the indices of this party's rows, and a list that contains this party's name if it
        shares few rows.
    """
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
    valid = not len(rows) or 0 <= rows.min() <= rows.max() < n
    if not valid or not each_once(rows, n):
        raise MessageError(
            f"party {active!r} sent invalid indices for the rows of {me!r}: expected {sizes[me]} "
            f"different indices below {n}"
        )
    return n, rows, [me] if summary["few"].any() else []


def _check_overlap(
    own: pl.Series, me: str, sizes: Mapping[str, int], n: int, few: Sequence[str], *, apart: bool
) -> None:
    """Raise an error if the parties share no id; warn if the parties in ``few`` share hardly any ids."""
    nothing_shared = len(sizes) > 1 and n == sum(sizes.values()) and not apart
    if not nothing_shared and not few:
        return
    examples = (
        f"Ids of {me} look like this: {some(map(shown, own.sort().head(2)))}. Ask the other parties whether theirs are "
        "written the same way (upper and lower case, leading zeros, blanks and dashes); id_normalize in [federation] "
        "removes such differences"
    )
    if not len(own):
        examples = f"All rows of {me} are empty"
    if nothing_shared:
        raise AlignmentError(f"no id is known to two parties, so there is nothing to learn together. {examples}")
    remark(f"under {FEW:.0%} of the ids of {some(few)} are known to any other party. {examples}")
