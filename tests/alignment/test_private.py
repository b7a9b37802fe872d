import hashlib
import itertools
import threading
import warnings
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_core_ed25519_from_uniform, crypto_core_ed25519_is_valid_point

from anyparty.alignment import private, rounds
from anyparty.alignment.alignment import Alignment, align
from anyparty.alignment.overlap import Overlap
from anyparty.alignment.rounds import TokenUnion
from anyparty.alignment.x25519 import L, P, Secret, SmallOrder, blind, hashed
from anyparty.core.types import ChannelWrapper, Party, Roster
from anyparty.errors import AlignmentError, ConfigError, MessageError, PartyLost
from anyparty.tables.table import read_table
from anyparty.transport import memory
from anyparty.transport.contract import ContractChannel

SALT = "hospital and bank, 2025"


@dataclass
class RecordingChannel(ChannelWrapper):
    """A channel that records all messages and may change them in transit."""

    tape: list = field(default_factory=list)
    change: object = None

    async def send(self, to, tag, tensors):
        if self.change is not None:
            tensors = self.change(self.me, to, tag, tensors)
        self.tape.append((self.me, to, tag, {name: each.clone() for name, each in tensors.items()}))
        return await super().send(to, tag, tensors)


def roster_of(names, active):
    """Create a roster whose active party holds labels only, unless it is alone."""
    return Roster(tuple(Party(name=name, columns=name != active, labels=name == active) for name in names), active)


def play(ids, active=None, *, tape=None, change=None, fixed=True, **settings):
    """Align all parties in this process; ``settings`` hold one value for all, or one for each party."""
    roster = roster_of(ids, active or next(iter(ids)))
    parts = {}
    for name, own in ids.items():
        of_party = {k: v[name] if isinstance(v, dict) else v for k, v in settings.items()}
        if fixed:
            of_party.setdefault("secret", secret_of(name).root)
        parts[name] = partial(private.align, roster=roster, ids=own, **{"salt": SALT, **of_party})

    def wrap(channel):
        return ContractChannel(
            RecordingChannel(channel, [] if tape is None else tape, change), roster, private.MESSAGES
        )

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "under 1% of the ids")
        return memory.play(parts, wrap)


def secret_of(name):
    return Secret.of(hashlib.sha256(name.encode()).digest())


def together(found):
    """Combine all positions, which no party may know."""
    first = next(iter(found.values()))
    return Alignment(first.parties, first.n, {name: each.position for name, each in found.items()})


def rows_of(alignment):
    """Return the rows as tuples of positions; the order of rows does not count."""
    return sorted(zip(*(alignment.position[name].tolist() for name in alignment.parties), strict=True))


def joined_in_the_clear(ids):
    tables = [read_table(pl.DataFrame({"id": own}), party=name, id="id") for name, own in ids.items()]
    return align(tables, apart=True)


def numbered(count, start=0):
    return [f"id-{i}" for i in range(start, start + count)]


# Results


IDS = st.lists(st.integers(0, 12).map(str), min_size=1, unique=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(IDS, min_size=2, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_private_alignment_equals_a_plain_join(lists, active, batch):
    ids = {f"p{k}": own for k, own in enumerate(lists)}
    leads = f"p{active % len(ids)}"
    found = play(ids, leads, batch=batch, apart=True)
    assert rows_of(together(found)) == rows_of(joined_in_the_clear(ids))
    present = together(found).observed(list(ids))
    assert (found[leads].present == present).all()
    assert (found[leads].observed(["p1", "p0"]) == present[:, [1, 0]]).all()
    assert all(each.present is None and each.key is None for name, each in found.items() if name != leads)


@pytest.mark.parametrize("parties", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch", [2, 100])
def test_alignment_never_deadlocks(parties, batch):
    ids = {f"p{k}": numbered(1 + 3 * k, start=k) for k in range(parties)}
    for active in ids:
        assert rows_of(together(play(ids, active, batch=batch, apart=True))) == rows_of(joined_in_the_clear(ids))


def test_ids_are_compared_as_trimmed_text():
    found = play({"a": pl.Series([7, 8]), "b": [" 8", "9 "], "c": pl.Series([9.0, 7.0])}, "b")
    assert rows_of(together(found)) == [(-1, 1, 0), (0, -1, 1), (1, 0, -1)]


def test_a_single_shared_id_is_aligned():
    assert rows_of(together(play({"a": ["x"], "b": ["x"]}))) == [(0, 0)]


def test_a_party_without_rows_is_aligned():
    found = play({"a": ["x", "y"], "b": [], "c": ["y"]}, "c")
    assert rows_of(together(found)) == [(0, -1, -1), (1, -1, 0)]
    assert found["b"].position.tolist() == [-1, -1]


def test_the_same_secrets_give_the_same_alignment():
    ids = {"a": numbered(9), "b": numbered(9, 3), "c": numbered(9, 5)}
    first, again, batched = play(ids, "b"), play(ids, "b"), play(ids, "b", batch=4)
    for other in (again, batched):
        assert all((first[name].position == other[name].position).all() for name in ids)
        assert (first["b"].key == other["b"].key).all()
    fresh = play(ids, "b", fixed=False)
    assert set(fresh["b"].key.tolist()).isdisjoint(first["b"].key.tolist())
    assert rows_of(together(fresh)) == rows_of(together(first))


def test_keys_do_not_depend_on_the_order_of_a_table():
    ids = {"a": numbered(9), "b": numbered(9, 3)}
    turned = {"a": ids["a"][::-1], "b": ids["b"][3:] + ids["b"][:3]}
    first, second = play(ids)["a"], play(turned)["a"]
    assert (first.key == second.key).all()
    assert (first.key >= 0).all()
    assert len(set(first.key.tolist())) == first.n == 12


def test_the_order_of_rows_is_independent_of_the_order_of_ids():
    position = play({"a": numbered(400), "b": numbered(400)}, fixed=False)["a"].position
    assert abs(np.corrcoef(position, np.arange(400))[0, 1]) < 0.25  # five standard deviations


def test_the_overlap_is_computed_from_a_private_alignment():
    found = play({"a": numbered(5), "b": numbered(5, 2), "c": numbered(2)}, "c")["c"]
    report = Overlap.count(found.observed(["a", "b"]), ["a", "b"])
    assert report.rows == 7
    assert report.by_all == 3


def test_a_passive_party_knows_only_its_own_rows():
    with pytest.raises(AlignmentError, match="'b' knows its own rows only"):
        play({"a": ["x"], "b": ["x"]})["b"].observed(["a"])


def test_progress_ends_at_its_total():
    told = {"a": [], "b": [], "c": []}
    progress = {name: lambda done, total, name=name: told[name].append((done, total)) for name in told}
    play({"a": numbered(7), "b": numbered(5), "c": numbered(3)}, "b", batch=2, progress=progress)
    assert {name: calls[-1] for name, calls in told.items()} == {"a": (22, 22), "b": (20, 20), "c": (18, 18)}
    assert all(calls == sorted(calls) for calls in told.values())


def test_computations_do_not_block_the_event_loop(monkeypatch):
    """No id is ordered, hashed, blinded or compared in the thread of the event loop."""
    ran, loops = {}, set()

    def noted(name, work):
        def run(*args):
            ran.setdefault(name, set()).add(threading.get_ident())
            return work(*args)

        return run

    async def with_its_thread(net):
        loops.add(threading.get_ident())
        return await private.align(net, roster_of(("a", "b"), "a"), numbered(4000), salt=SALT)

    monkeypatch.setattr(Secret, "order", noted("order", Secret.order))
    monkeypatch.setattr(TokenUnion, "of", noted("union", TokenUnion.of))
    monkeypatch.setattr(rounds, "blind", noted("blind", rounds.blind))
    monkeypatch.setattr(rounds, "hashed", noted("hash", rounds.hashed))
    memory.play(dict.fromkeys("ab", with_its_thread))
    assert ran.keys() == {"order", "union", "blind", "hash"}
    assert loops.isdisjoint(set.union(*ran.values()))


# Messages


def points_of(tape, where=lambda *_: True):
    """Return all points that were sent between some parties."""
    return {
        bytes(row) for frm, to, _, each in tape if "points" in each and where(frm, to) for row in each["points"].numpy()
    }


def products(scalars, points):
    """Return every point times every product of some scalars, and the point itself."""
    for size in range(len(scalars) + 1):
        for some_of in itertools.combinations(scalars, size):
            out = points
            for scalar in some_of:
                out = blind(scalar, out)
            yield from (out[at : at + 32] for at in range(0, len(out), 32))


def secrets_of(secret):
    return [secret.scalar, secret.once, secret.rest]


def test_messages_are_sent_in_batches():
    tape = []
    play({"a": numbered(10), "b": numbered(7), "c": numbered(3)}, tape=tape, batch=4)
    of_a = [each["points"].shape for frm, to, tag, each in tape if (frm, to, tag) == ("a", "b", "align-ids")]
    assert of_a[0] == (4, 32)
    assert all(each["points"].shape[0] <= 4 for *_, tag, each in tape if "points" in each)
    assert [len(each["rows"]) for _, to, tag, each in tape if (to, tag) == ("b", "align-positions")] == [4, 3]
    assert [len(each["points"]) for frm, *_, tag, each in tape if (frm, tag) == ("b", "align-tokens")] == [4, 3]
    with_state = {"align-state", "align-left-out"}
    assert {tag for *_, tag, _ in tape} == {message.tag for message in private.MESSAGES} - with_state


def test_no_message_holds_an_id_or_its_hash():
    ids = {name: [f"patient-{name}-{i}-of-the-clinic" for i in range(6)] + numbered(20) for name in "abcd"}
    tape = []
    play(ids, "c", tape=tape, batch=8)
    crossed = b"|".join(each.numpy().tobytes() for *_, tensors in tape for each in tensors.values())
    words = [SALT, *(text for own in ids.values() for text in own)]
    for text in words:
        raw = text.encode()
        tried = [raw, hashed([text], SALT), hashed([text], "")]
        for form in (
            raw,
            SALT.encode() + raw,
            raw + SALT.encode(),
            f"{SALT}:{text}".encode(),
            f"{SALT}/{text}".encode(),
        ):
            tried += [hashlib.new(name, form).digest() for name in ("md5", "sha1", "sha256", "sha512", "blake2b")]
            tried.append(hashlib.blake2b(form, digest_size=32).digest())
            tried.append(hashlib.blake2b(raw, digest_size=32, key=hashlib.sha256(SALT.encode()).digest()).digest())
        for each in tried:
            assert each[:16] not in crossed, text
            assert each.hex().encode()[:16] not in crossed


@pytest.mark.parametrize("active", ["a", "b", "d"])
def test_ids_cannot_be_tested_without_the_secret_of_each_party(active):
    """All other parties pool their secrets and test the ids that only d has against all messages."""
    own = numbered(3, start=100)
    tape = []
    play({"a": numbered(6), "b": numbered(6), "c": numbered(6), "d": numbered(2) + own}, active, tape=tape, batch=2)
    crossed = points_of(tape)
    guesses = hashed(own, SALT)
    known = [scalar for name in "abc" for scalar in secrets_of(secret_of(name))]
    assert crossed.isdisjoint(products(known, guesses))
    with_help = [secret_of(name).scalar for name in "abcd"] + [secret_of("d").once]
    assert not crossed.isdisjoint(products(with_help, guesses))  # the search works


def test_the_active_party_cannot_try_ids_with_its_own_scalars():
    tape = []
    play({"a": numbered(5), "b": numbered(5, 3)}, "a", tape=tape)
    received = points_of(tape, lambda _, to: to == "a")
    assert received.isdisjoint(products(secrets_of(secret_of("a")), hashed(numbered(8), SALT)))


def test_passive_parties_together_cannot_compare_lists():
    """a, b, c, d have the same id; b and c look for equal points in d's list, a's list and their own."""
    names, id_ = "abcd", ["the one"]
    tape = []
    play(dict.fromkeys(names, id_), "a", tape=tape)
    point = hashed(id_, SALT)
    owner = {}
    for name in names:
        others = [secret_of(each).scalar for each in names if each != name]
        for each in products(others, blind(secret_of(name).once, point)):
            owner[each] = name
    seen = points_of(tape, lambda frm, to: {frm, to} & {"b", "c"} and (to, frm) not in {("a", "b"), ("a", "c")})
    assert seen <= owner.keys()
    lists = {name: b"".join(row for row in sorted(seen) if owner[row] == name) for name in names}
    assert all(lists.values())
    known = [*secrets_of(secret_of("b")), *secrets_of(secret_of("c"))]
    reach = {name: set(products(known, rows)) for name, rows in lists.items()}
    for one, other in itertools.combinations(names, 2):
        if {one, other} != {"b", "c"}:
            assert reach[one].isdisjoint(reach[other]), (one, other)
    assert not reach["b"].isdisjoint(reach["c"])  # they can compare their own ids


def test_a_passive_party_never_sees_a_token():
    tape = []
    play({"a": numbered(4), "b": numbered(4), "c": numbered(4)}, "b", tape=tape)
    tokens = hashed(numbered(4), SALT)
    for name in "abc":
        tokens = blind(secret_of(name).scalar, tokens)
    crossed = points_of(tape)
    assert crossed.isdisjoint(tokens[at : at + 32] for at in range(0, len(tokens), 32))


def test_points_are_sent_in_a_secret_order():
    ids = numbered(50)
    tape = []
    play({"a": ids, "b": ids}, tape=tape)
    secret = secret_of("b")
    left = next(each["points"] for frm, _, tag, each in tape if (frm, tag) == ("b", "align-tokens"))
    in_order = blind(secret.scalar, hashed(ids, SALT))
    sent = [in_order.index(bytes(row)) // 32 for row in left.numpy()]
    assert sent == secret.order(50).tolist()
    assert sorted(sent) == list(range(50)) != sent


def test_the_secret_order_of_many_ids_is_random():
    order = Secret.of(bytes(32)).order(20_000)
    assert sorted(order.tolist()) == list(range(20_000))
    assert abs((np.diff(order) > 0).mean() - 0.5) < 0.02


def test_all_sent_points_are_on_the_curve():
    """Blinding keeps a point on the twist there, which would leak a bit of each id."""
    tape = []
    play({"a": numbered(20), "b": numbered(20)}, tape=tape, fixed=False)
    assert all(on_the_curve(int.from_bytes(each, "little")) for each in points_of(tape))


# The curve, by slow arithmetic


def on_the_curve(u):
    return pow(u**3 + 486662 * u**2 + u, (P - 1) // 2, P) in (0, 1)


def ladder(k, u):
    """Compute the ladder of RFC 7748, section 5, without clamping."""
    x2, z2, x3, z3 = 1, 0, u, 1
    for bit in bin(k)[2:]:
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % P, u * (d * a - c * b) ** 2 % P
        e = a * a - b * b
        x2, z2 = a * a * b * b % P, e * (a * a + 121665 * e) % P
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return x2 * pow(z2, -1, P) % P


def elligator(r):
    """Compute the x-coordinate of RFC 9380, 6.7.1, before the cofactor is cleared."""
    u = -486662 * pow(1 + 2 * r * r, -1, P) % P
    return u if on_the_curve(u) else (-u - 486662) % P


def test_hashing_equals_elligator_2_times_the_cofactor():
    for text in numbered(20):
        key = hashlib.sha256(SALT.encode()).digest()
        digest = hashlib.blake2b(text.encode(), digest_size=32, key=key, person=b"anyparty.align.1").digest()
        r = int.from_bytes(digest, "little") % 2**255
        got = int.from_bytes(hashed([text], SALT), "little")
        assert got == ladder(8, elligator(r))
        assert crypto_core_ed25519_is_valid_point(crypto_core_ed25519_from_uniform(digest))  # of prime order


def test_each_id_has_one_hash_that_depends_on_the_salt():
    both = hashed(["a", "b"], SALT)
    assert both == hashed(["a"], SALT) + hashed(["b"], SALT)
    assert len(set(products([], both + hashed(["a", "b"], "another")))) == 4
    assert hashed([], SALT) == b""


def test_blinding_is_multiplication_and_commutes():
    point = hashed(["x"], SALT)
    s, t = Secret.of().scalar, Secret.of().scalar
    assert blind(s, blind(t, point)) == blind(t, blind(s, point)) != point
    u = int.from_bytes(point, "little")
    assert blind(s, point) == ladder(int.from_bytes(s, "little"), u).to_bytes(32, "little")


def test_the_one_time_scalar_is_replaced_by_the_secret_one():
    for secret in (Secret.of() for _ in range(50)):
        s, r, t = (int.from_bytes(each, "little") for each in (secret.scalar, secret.once, secret.rest))
        assert r * t % L == s % L
        assert all(each % 8 == 0 and 2**254 <= each < 2**255 for each in (s, r, t))
        point = hashed(["x"], SALT)
        assert blind(secret.rest, blind(secret.once, point)) == blind(secret.scalar, point)


def test_secrets_differ_and_are_not_in_the_repr():
    assert len({Secret.of().scalar for _ in range(20)}) == 20
    secret = Secret.of()
    assert secret.scalar.hex() not in repr(secret)
    assert str(secret.scalar) not in repr(secret)


SMALL = [0, 1, P - 1, P, P + 1, 325606250916557431795983626356110631294008115727848805560023387167927233504]


@pytest.mark.parametrize("u", SMALL)
def test_points_of_small_order_are_refused(u):
    with pytest.raises(SmallOrder):
        blind(Secret.of().scalar, hashed(["x"], SALT) + u.to_bytes(32, "little"))


# Errors


def at(tag, frm, to=None, **changed):
    """Return a function that changes the tensors of every message ``tag`` from ``frm``."""

    def change(me, receiver, named, tensors):
        if (named, me) != (tag, frm) or to not in (None, receiver):
            return tensors
        return tensors | {name: new(tensors[name].clone()) for name, new in changed.items()}

    return change


def zeroed(points):
    points[1] = 0
    return points


def doubled(points):
    points[1] = points[0]
    return points


THREE = {"a": numbered(4), "b": numbered(5), "c": numbered(6)}


@pytest.mark.parametrize("tag", ["align-ids", "align-tokens"])
def test_a_zero_point_is_refused(tag):
    with pytest.raises(MessageError, match=f"{tag}' from 'b' to '[ac]': a point has small order"):
        play(THREE, change=at(tag, "b", points=zeroed))


def test_a_duplicate_token_is_refused():
    with pytest.raises(MessageError, match="the list of party 'b' contains the same token twice"):
        play(THREE, change=at("align-tokens", "b", points=doubled))


def test_a_message_of_another_shape_is_refused():
    with pytest.raises(MessageError, match=r"'points' should be torch.uint8 \[5, 32\], got torch.uint8 \[4, 32\]"):
        play(THREE, change=at("align-tokens", "b", points=lambda points: points[1:]))


@pytest.mark.parametrize("places", [lambda rows: rows * 0, lambda rows: rows - 1 - rows.max(), lambda rows: rows + 100])
def test_invalid_row_indices_are_refused(places):
    with pytest.raises(
        MessageError, match="'a' sent invalid indices for the rows of 'c': expected 6 different indices below 6"
    ):
        play(THREE, change=at("align-positions", "a", "c", rows=places))


@pytest.mark.parametrize("n", [5, 16, -1])
def test_an_impossible_number_of_distinct_rows_is_refused(n):
    with pytest.raises(MessageError, match=rf"'a' reports {n} distinct rows for lists of \[4, 5, 6\] rows"):
        play(THREE, change=at("align-union", "a", "b", rows=lambda rows: rows * 0 + n))


def test_a_negative_size_is_refused():
    with pytest.raises(MessageError, match="'c' reports -6 rows"):
        play(THREE, change=at("align-terms", "c", rows=torch.neg))


@pytest.mark.parametrize("other", [{"salt": "x"}, {"batch": 7}, {"apart": True}])
def test_parties_must_agree_on_the_terms(other):
    (name, value), usual = *other.items(), {"salt": SALT, "batch": private.BATCH, "apart": False}
    with pytest.raises(ConfigError, match="has another salt"):
        play(THREE, **{name: {"a": usual[name], "b": usual[name], "c": value}})


def test_a_party_that_leaves_is_reported():
    async def leave(net):
        return None

    roster = roster_of("abc", "a")
    parts = {name: partial(private.align, roster=roster, ids=["x"], salt=SALT) for name in "ab"}
    with pytest.raises(PartyLost, match="'c'"):
        memory.play({**parts, "c": leave})


@pytest.mark.parametrize(("ids", "says"), [
    (["x", None], "party 'a': there is no id in row '2'"),
    (["x", " "], "party 'a': there is no id in row '2'"),
    (["x", "y", " x"], "party 'a': each id must occur once, but 'x'"),
])  # fmt: skip
def test_invalid_ids_are_refused(ids, says):
    with pytest.raises(AlignmentError, match=says):
        play({"a": ids, "b": ["x"]})


def outcomes(ids, active):
    """Return every party's result, error and warnings."""
    told = {}
    roster = roster_of(ids, active)

    async def part(net):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                await private.align(net, roster, ids[net.me], salt=SALT)
            except AlignmentError as error:
                told[net.me] = error
            return caught

    memory.play(dict.fromkeys(ids, part))
    return told


def test_the_error_about_no_overlap_shows_each_party_only_its_own_ids():
    ids = {"a": ["A-1", "A-2"], "b": ["b_1", "b_2"], "c": ["c/1"]}
    told = outcomes(ids, "b")
    assert set(told) == set(ids)
    for name, error in told.items():
        assert "no id is known to two parties" in str(error)
        assert repr(ids[name][0]) in str(error)
        assert not any(each in str(error) for other in ids if other != name for each in ids[other])


def warnings_of(ids, active):
    """Return every party's warnings; parties in the same thread share a list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        roster = roster_of(ids, active)
        memory.play({name: partial(private.align, roster=roster, ids=own, salt=SALT) for name, own in ids.items()})
    return sorted(str(each.message) for each in caught)


def test_a_tiny_overlap_causes_a_warning_at_both_parties():
    ids = {"a": numbered(300), "b": numbered(300), "c": ["id-0", *(f"ID{i}" for i in range(300))]}
    at_a, at_c = sorted(warnings_of(ids, "a"), key=lambda text: "of c look" in text)
    assert at_a.startswith("under 1% of the ids of 'c' are known to any other party. Ids of a look like this: 'id-0'")
    assert at_c.startswith("under 1% of the ids of 'c' are known to any other party. Ids of c look like this: 'ID0'")
    assert "ID" not in at_a


def test_a_small_party_within_a_large_one_causes_no_warning():
    assert warnings_of({"a": numbered(1000), "b": numbered(3)}, "b") == []


def test_parties_without_shared_rows_are_accepted_on_request():
    found = play({"a": ["x"], "b": ["y"]}, apart=True)
    assert sorted(rows_of(together(found))) == [(-1, 0), (0, -1)]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["7", "8"], "id_normalize = []"),
        (["7\x1f1", "8\x1f1"], "id_normalize = [] and 2 id columns"),
    ],
)
def test_parties_with_different_id_settings_stop_before_an_id_is_sent(ids, said):
    names, tape = ("a", "b"), []
    roster = roster_of(names, "a")
    parts = {
        "a": lambda net: private.align(RecordingChannel(net, tape), roster, ids, salt=SALT),
        "b": lambda net: private.align(
            RecordingChannel(net, tape), roster, ["07", "8"], salt=SALT, normalize=["strip-zeros"]
        ),
    }
    with pytest.raises(ConfigError, match="write the same settings at both") as stopped:
        memory.play(parts)
    assert said in str(stopped.value)
    assert "id_normalize = ['strip-zeros']" in str(stopped.value)
    assert {tag for _, _, tag, _ in tape} == {"align-terms"}


def test_normalized_ids_match():
    roster = roster_of(("a", "b"), "a")
    ids = {"a": ["007", "x-1"], "b": ["7", "X1"]}
    changes = ["strip-zeros", "lower-case", "strip-hyphens"]
    found = memory.play(
        {name: partial(private.align, roster=roster, ids=ids[name], salt=SALT, normalize=changes) for name in ids}
    )
    assert found["a"].n == 2
