import stat

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyparty.alignment import alignment_state
from anyparty.alignment.alignment_state import AlignmentState
from anyparty.alignment.rounds import TokenUnion
from anyparty.alignment.x25519 import SIZE, Secret, blind, hashed
from anyparty.errors import ConfigError, MessageError, StorageError
from tests.alignment.test_private import (
    SALT,
    at,
    joined_in_the_clear,
    numbered,
    play,
    points_of,
    products,
    rows_of,
    secret_of,
    secrets_of,
    together,
)

THREE = {"a": numbered(40), "b": numbered(40, 15), "c": numbered(30, 5)}


def folders(tmp_path, names):
    return {name: tmp_path / name for name in names}


def kept(tmp_path, ids, active="a", **settings):
    """Align with a state on disk at every party."""
    return play(ids, active, apart=True, state=folders(tmp_path, ids), **settings)


def pairs(ids, found):
    """Return each row as the ids at its parties, in any order; this works after ids were added or left out."""
    rows = zip(*(found[name].position for name in ids), strict=True)
    return sorted(
        tuple("" if row < 0 else str(own[row]) for own, row in zip(ids.values(), places, strict=True))
        for places in rows
    )


def sent(tape, tag="align-ids"):
    return sum(len(each["points"]) for _, _, named, each in tape if named == tag)


class CutError(Exception):
    pass


def cut_after(count, party):
    """Return a function that ends the run before the message number ``count`` of a party."""
    left = [count]

    def change(me, to, tag, tensors):
        if me == party:
            left[0] -= 1
            if left[0] < 0:
                raise CutError
        return tensors

    return change


@pytest.mark.parametrize("with_state", [False, True])
def test_rows_follow_the_bytes_of_tokens(tmp_path, with_state):
    """A slow computation with all secrets: a token is H(id) s_1 ... s_K, and row n has the n-th token."""
    ids = {}
    for text in sorted({each for own in THREE.values() for each in own}):
        token = hashed([text], SALT)
        for party in THREE:
            token = blind(secret_of(party).scalar, token)
        ids[token] = text
    in_order = [ids[token] for token in sorted(ids)]
    found = kept(tmp_path, THREE, "b") if with_state else play(THREE, "b")
    for name, own in THREE.items():
        assert found[name].position.tolist() == [own.index(each) if each in own else -1 for each in in_order]
    assert found["b"].key.tolist() == [int.from_bytes(token[8:16], "little") >> 1 for token in sorted(ids)]


@pytest.mark.parametrize(
    ("party", "count"),
    [("a", 0), ("b", 2), ("c", 4), ("a", 5), ("b", 8), ("c", 8), ("a", 12), ("b", 16), ("c", 16), ("a", 20), ("b", 25)],
)
def test_an_interrupted_alignment_continues(tmp_path, party, count):
    tape = []
    try:
        kept(tmp_path, THREE, batch=7, tape=tape, change=cut_after(count, party))
    except CutError:
        pass
    else:
        assert count >= 20
    before, tape = sent(tape, "align-tokens"), []
    found = kept(tmp_path, THREE, batch=7, tape=tape)
    assert rows_of(together(found)) == rows_of(joined_in_the_clear(THREE))
    whole = len(THREE["b"]) + len(THREE["c"])
    assert whole - before <= sent(tape, "align-tokens") <= min(whole, whole - before + 28)


def test_new_ids_only_are_processed(tmp_path):
    kept(tmp_path, THREE)
    more = {"a": [*numbered(3, 900), *THREE["a"]], "b": THREE["b"][2:], "c": [*THREE["c"], "id-901", "id-39"]}
    tape = []
    found = kept(tmp_path, more, tape=tape)
    assert pairs(more, found) == pairs(more, play(more))
    assert sent(tape, "align-tokens") == 2  # c's
    assert sent(tape) == 3 * 3 + 2 * 2  # a's list visits b and c, and returns; c's list visits b and returns
    reports = {frm: each for frm, _, tag, each in tape if tag == "align-state"}
    assert {name: each["entries"].tolist() for name, each in reports.items()} == {
        "a": [40, 43], "b": [40, 40], "c": [30, 32],
    }  # fmt: skip
    assert reports["a"]["done"].tolist() == [40, 40, 30]
    left_out = [(frm, to, len(each["places"])) for frm, to, tag, each in tape if tag == "align-left-out"]
    assert left_out == [("b", "a", 2)]


def test_an_id_that_was_left_out_returns_to_its_place(tmp_path):
    """An id that is removed and later added at the end of the table must not enter the list a second time."""
    for own in (THREE["b"], THREE["b"][:-1], [*THREE["b"], "id-1"], THREE["b"][::-1]):
        ids, tape = THREE | {"b": own}, []
        assert pairs(ids, kept(tmp_path, ids, tape=tape)) == pairs(ids, play(ids))
    assert sent(tape) == 0
    assert len((tmp_path / "b" / "list.bin").read_bytes()) == 16 * 41


def test_a_list_with_an_id_twice_is_not_used(tmp_path):
    kept(tmp_path, THREE)
    file = tmp_path / "b" / "list.bin"
    file.write_bytes(file.read_bytes() + file.read_bytes()[:16])
    tape = []
    assert rows_of(together(kept(tmp_path, THREE, tape=tape))) == rows_of(joined_in_the_clear(THREE))
    assert sent(tape, "align-tokens") == 70


OPERATIONS = st.lists(st.lists(st.integers(0, 15).map(str), min_size=1, unique=True), min_size=3, max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(OPERATIONS, min_size=2, max_size=4), active=st.sampled_from("abc"), batch=st.integers(2, 5))
def test_a_series_of_alignments_equals_full_ones(tmp_path_factory, runs, active, batch):
    folder = tmp_path_factory.mktemp("series")
    for lists in runs:
        ids = dict(zip("abc", lists, strict=True))
        found = kept(folder, ids, active, batch=batch)
        full = play(ids, active, apart=True)
        assert pairs(ids, found) == pairs(ids, full)
        assert (found[active].present == together(found).observed("abc")).all()
        assert sorted(found[active].key) == sorted(full[active].key)


@pytest.mark.parametrize("party", ["a", "b"])
def test_without_one_partys_state_all_start_again_with_new_secrets(tmp_path, party):
    first = kept(tmp_path, THREE, fixed=False)
    AlignmentState(tmp_path / party, b"").delete()
    assert not (tmp_path / party).exists()
    tape = []
    found = kept(tmp_path, THREE, tape=tape, fixed=False)
    assert sent(tape, "align-tokens") == 70
    assert rows_of(together(found)) == rows_of(joined_in_the_clear(THREE))
    assert set(found["a"].key).isdisjoint(first["a"].key)


def test_a_restored_backup_of_a_list_is_not_used(tmp_path):
    kept(tmp_path, THREE)
    old = (tmp_path / "b" / "list.bin").read_bytes()
    kept(tmp_path, THREE | {"b": [*THREE["b"], "new"]})
    (tmp_path / "b" / "list.bin").write_bytes(old)
    ids = THREE | {"b": [*THREE["b"], "id-1"]}
    tape = []
    assert pairs(ids, kept(tmp_path, ids, tape=tape)) == pairs(ids, play(ids))
    assert sent(tape, "align-tokens") == 71


def test_rows_of_another_list_of_the_same_length_are_not_used(tmp_path):
    more = THREE | {"b": [*THREE["b"], "new"]}
    kept(tmp_path, THREE)
    old = (tmp_path / "b" / "rows.bin").read_bytes()
    kept(tmp_path, more)
    (tmp_path / "b" / "rows.bin").write_bytes(old)
    assert pairs(more, kept(tmp_path, more)) == pairs(more, play(more))


@pytest.mark.parametrize("grown", [lambda own: [*own, "new"], lambda own: own, lambda own: own[:-1],
                                   lambda own: [*own[::-1], "new"], lambda own: ["new", *own]])  # fmt: skip
def test_rows_added_at_the_end_need_no_hash_of_the_others(tmp_path, monkeypatch, grown):
    kept(tmp_path, THREE)
    ids, hashes, sizes = THREE | {"b": grown(THREE["b"])}, alignment_state._hashes, []
    monkeypatch.setattr(alignment_state, "_hashes", lambda ids, root: sizes.append(len(ids)) or hashes(ids, root))
    assert pairs(ids, kept(tmp_path, ids)) == pairs(ids, play(ids))
    appended = ids["b"][: len(THREE["b"])] == THREE["b"]
    added = "new" in ids["b"]
    assert sum(sizes) == (added if appended else len(ids["b"]) + added)


def no_stored_tokens(monkeypatch):
    """Make the active party fail if it reads tokens from its disk."""
    monkeypatch.setattr(AlignmentState, "tokens", lambda _, place: pytest.fail(f"read tokens of party {place}"))


def test_only_new_tokens_are_compared(tmp_path, monkeypatch):
    kept(tmp_path, THREE)
    more = {"a": [*THREE["a"], "new"], "b": [*THREE["b"], "id-1", "id-2"], "c": [*THREE["c"][5:], "new"]}
    no_stored_tokens(monkeypatch)
    for ids in (more, THREE | {"c": more["c"]}, more | {"a": [*more["a"], "id-901"]}):
        assert pairs(ids, kept(tmp_path, ids)) == pairs(ids, play(ids, apart=True))


@pytest.mark.parametrize("spoil", [
    lambda raw: raw[:0],
    lambda raw: raw[:5],
    lambda raw: raw[:-8],
    lambda raw: raw[:-8] + bytes(8),
    lambda raw: raw[:80] + bytes([raw[80] ^ 1]) + raw[81:],
])  # fmt: skip
def test_a_damaged_union_is_computed_again(tmp_path, spoil):
    kept(tmp_path, THREE)
    file = tmp_path / "a" / "union.bin"
    raw = file.read_bytes()
    file.write_bytes(spoil(raw))
    more = THREE | {"b": [*THREE["b"], "id-1"]}
    found = kept(tmp_path, more)
    assert pairs(more, found) == pairs(more, play(more))
    assert len(file.read_bytes()) == len(raw) + 4  # one more token of a known row


def test_a_state_of_an_earlier_version_is_used(tmp_path):
    """It has no union, and another hash in rows.bin."""
    kept(tmp_path, THREE)
    (tmp_path / "a" / "union.bin").unlink()
    for name in THREE:
        file = tmp_path / name / "rows.bin"
        file.write_bytes(bytes(SIZE) + file.read_bytes()[SIZE:])
    tape, more = [], THREE | {"b": [*THREE["b"], "id-1"]}
    assert pairs(more, kept(tmp_path, more, tape=tape)) == pairs(more, play(more))
    assert sent(tape, "align-tokens") == 1


def random_tokens(lists):
    """Return the tokens of numbered ids, all lists in one array."""
    made = [np.random.default_rng(number).bytes(SIZE) for own in lists.values() for number in own]
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, SIZE)


def union_of(lists):
    return TokenUnion.of({name: len(own) for name, own in lists.items()}, random_tokens(lists))


NUMBERS = st.lists(st.integers(0, 20), unique=True)


@settings(max_examples=100, deadline=None)
@given(lists=st.lists(NUMBERS, min_size=3, max_size=3), cuts=st.lists(st.integers(0, 20), min_size=3, max_size=3))
def test_an_extended_union_equals_the_union_of_all_tokens(lists, cuts):
    whole = dict(zip("abc", lists, strict=True))
    first = {name: own[:cut] for (name, own), cut in zip(whole.items(), cuts, strict=True)}
    rest = {name: own[cut:] for (name, own), cut in zip(whole.items(), cuts, strict=True)}
    found, expected = union_of(first).extended(union_of(rest)), union_of(whole)
    assert found.n == expected.n
    for name in whole:
        assert found.rows[name].tolist() == expected.rows[name].tolist()
    assert found.head.tolist() == expected.head.tolist()
    assert found.key.tolist() == expected.key.tolist()


def test_an_extended_union_finds_a_token_that_a_list_has_twice():
    with pytest.raises(MessageError, match="'b' contains the same token twice"):
        union_of({"a": [1, 2], "b": [2, 3]}).extended(union_of({"a": [3], "b": [4, 2]}))


@pytest.mark.parametrize("where", ["first", "rest", "both"])
def test_tokens_with_equal_heads_are_left_to_the_whole_union(where):
    tokens = random_tokens({"a": range(6)}).copy()
    one, other = {"first": (0, 1), "rest": (4, 5), "both": (0, 5)}[where]
    tokens[other, :8] = tokens[one, :8]
    first, rest = TokenUnion.of({"a": 3}, tokens[:3]), TokenUnion.of({"a": 3}, tokens[3:])
    assert first.extended(rest) is None
    assert TokenUnion.of({"a": 6}, tokens).n == 6


@pytest.mark.parametrize("spoil", [
    lambda folder: (folder / "state.json").write_text("{"),
    lambda folder: (folder / "state.json").write_text('{"series": "ff", "root": "00", "terms": ""}'),
    lambda folder: (folder / "rows.bin").write_bytes((folder / "rows.bin").read_bytes()[:-8] + bytes(8)),
    lambda folder: (folder / "rows.bin").unlink(),
    lambda folder: (folder / "list.bin").unlink(),
    lambda folder: (folder / "list.bin").write_bytes((folder / "list.bin").read_bytes()[:-5]),
])  # fmt: skip
def test_a_damaged_state_is_replaced(tmp_path, spoil):
    kept(tmp_path, THREE)
    spoil(tmp_path / "b")
    assert rows_of(together(kept(tmp_path, THREE))) == rows_of(joined_in_the_clear(THREE))


def test_tokens_that_were_half_written_are_computed_again(tmp_path):
    kept(tmp_path, THREE)
    file = tmp_path / "a" / "tokens-2.bin"
    file.write_bytes(file.read_bytes()[: 10 * SIZE + 7])
    tape = []
    assert rows_of(together(kept(tmp_path, THREE, tape=tape))) == rows_of(joined_in_the_clear(THREE))
    assert sent(tape, "align-tokens") == 20


# Privacy


def test_rows_have_a_new_random_order_each_time(tmp_path):
    """With the order of the first alignment, a passive party would see between which of its rows others were added."""
    first = kept(tmp_path, THREE)["b"].position
    again = kept(tmp_path, THREE)["b"].position
    assert sorted(first) == sorted(again)
    assert first.tolist() != again.tolist()
    own = [np.argsort(position)[-40:].tolist() for position in (first, again)]
    assert own[0] != own[1]


def test_each_alignment_has_its_own_one_time_scalar(tmp_path):
    """After an interruption, the same ids leave again: no party can compare the two lists of points."""
    tapes = [], []

    def cut(me, to, tag, tensors):
        if (me, to, tag) == ("c", "a", "align-ids"):  # these points have come from b
            raise CutError
        return tensors

    with pytest.raises(CutError):
        kept(tmp_path, THREE, tape=tapes[0], change=cut)
    kept(tmp_path, THREE, tape=tapes[1])
    first, second = (points_of(tape, lambda frm, to: (frm, to) == ("b", "c")) for tape in tapes)
    assert first
    assert second
    assert first.isdisjoint(second)


def test_without_one_partys_help_no_party_tests_ids_over_a_series(tmp_path):
    own, tape = numbered(3, 100), []
    kept(tmp_path, {"a": numbered(6), "b": numbered(6), "c": numbered(6)}, tape=tape)
    kept(tmp_path, {"a": numbered(7), "b": numbered(8), "c": numbered(6) + own}, tape=tape)
    guesses = hashed(own, SALT)
    known = [scalar for name in "ab" for scalar in secrets_of(secret_of(name))]
    crossed = points_of(tape)
    assert crossed.isdisjoint(products(known, guesses))
    assert not crossed.isdisjoint(products([*known, secret_of("c").scalar], guesses))  # the search works


def test_only_the_owner_can_read_the_state_and_it_holds_no_id(tmp_path):
    ids = {name: [f"patient-{i}" for i in range(20)] for name in "abc"}
    kept(tmp_path, ids, fixed=False)
    for name, own in ids.items():
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        files = sorted(path.name for path in (tmp_path / name).iterdir())
        tokens = [f"tokens-{place}.bin" for place in range(3)] if name == "a" else []
        union = ["union.bin"] if name == "a" else []
        assert files == ["list.bin", "rows.bin", "state.json", *tokens, *union]
        for path in (tmp_path / name).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            raw = path.read_bytes()
            assert b"patient" not in raw
            assert not any(hashed([text], SALT) in raw for text in own)


def test_scalars_of_a_continued_root():
    root = secret_of("x").root
    one, other = Secret.of(root, bytes(32)), Secret.of(root, bytes([1] * 32))
    assert one.scalar == other.scalar == Secret.of(root).scalar
    assert len({one.once, other.once, Secret.of(root).once}) == 3
    assert one.order(30).tolist() != other.order(30).tolist()


# Errors


def test_a_party_without_a_state_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="only one of them can continue an interrupted alignment"):
        play(THREE, state={"a": tmp_path / "a", "b": tmp_path / "b", "c": None})


@pytest.mark.parametrize(("tag", "changed", "says"), [
    ("align-state", {"entries": lambda each: each - 1}, "'b' reports a list of -1 entries, or 39 with its new ids"),
    ("align-state", {"entries": lambda each: each.flip(0)}, "'b' reports a list of 40 entries, or 0 with its new ids"),
])  # fmt: skip
def test_impossible_numbers_are_refused(tmp_path, tag, changed, says):
    with pytest.raises(MessageError, match=says):
        kept(tmp_path, THREE, change=at(tag, "b", **changed))


@pytest.mark.parametrize("places", [lambda each: each * 0, lambda each: each + 1000, lambda each: -each])
def test_impossible_places_are_refused(tmp_path, places):
    kept(tmp_path, THREE)
    fewer = THREE | {"b": THREE["b"][5:]}
    with pytest.raises(MessageError, match="party 'b' reports impossible places"):
        kept(tmp_path, fewer, change=at("align-left-out", "b", places=places))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "b").write_text("a file")
    with pytest.raises(StorageError, match="b: cannot be written"):
        kept(tmp_path, THREE)
