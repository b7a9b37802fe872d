"""Vectors by id, compared with a dictionary."""

import torch

from anyparty.networks.modules import VectorMemory


def filled(n, width=3, parties=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = [f"id {number}" for number in torch.rand(n, generator=draw).tolist()]
    vectors, took = torch.randn(n, width, generator=draw), torch.rand(n, parties, generator=draw) > 0.5
    made = VectorMemory(width, parties)
    made.remember(ids, vectors, took)
    return made, ids, vectors, took


def test_every_id_finds_its_vector_in_any_order_and_no_other_does():
    made, ids, vectors, took = filled(200)
    by_id = {name: n for n, name in enumerate(ids)}
    asked = [*sorted(ids), "another", ids[0] + " "]
    at = made.find(asked)
    assert at[-2:].tolist() == [-1, -1]
    wanted = [by_id[name] for name in asked[:-2]]
    assert torch.equal(made.vectors[at[:-2]], vectors[wanted])
    assert torch.equal(made.took_part[at[:-2]], took[wanted])


def test_nothing_is_found_where_nothing_is_remembered():
    assert VectorMemory(3, 2).find(["a", "b"]).tolist() == [-1, -1]
    assert filled(5)[0].find([]).tolist() == []


def test_a_saved_one_is_the_same_however_many_rows_it_holds():
    made, ids, *_ = filled(7)
    loaded = VectorMemory(3, 2)
    loaded.load_state_dict(made.state_dict())
    assert torch.equal(loaded.find(ids), made.find(ids))
    assert torch.equal(loaded.vectors, made.vectors)
    assert torch.equal(loaded.took_part, made.took_part)


def test_its_keys_do_not_depend_on_versions_of_anything():
    """Keys are 8-byte BLAKE2b hashes, little-endian, so that models saved today still find their rows in ten years."""
    made = VectorMemory(1, 1)
    made.remember(["7", "Ünal"], torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool))
    assert made.keys.tolist() == [-9038873097560174361, -232192999753495756]


def test_remembering_again_forgets_what_was():
    made, ids, *_ = filled(7)
    made.remember(ids[:2], torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool))
    assert (made.find(ids) >= 0).sum() == 2
