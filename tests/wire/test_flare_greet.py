"""Who comes and goes, as FLARE tells it and a terminal says it."""

import logging
from types import SimpleNamespace

import pytest

from anyparty.wire.flare import greet

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.fuel.f3.sfm.sfm_endpoint import Endpoint, SfmEndpoint


def event(name, *clients):
    peer = SimpleNamespace(get_identity_name=lambda: name)
    manager = SimpleNamespace(clients={each: SimpleNamespace(name=each) for each in clients})
    engine = SimpleNamespace(client_manager=manager)
    return SimpleNamespace(get_peer_context=lambda: peer, get_engine=lambda: engine)


@pytest.fixture
def doorman():
    doorman, log = greet.Doorman(parties=3), logging.getLogger("nvflare.fuel.f3.sfm.sfm_endpoint")
    before = log.level, log.propagate
    doorman.handle_event(EventType.SYSTEM_START, None)
    yield doorman
    log.removeHandler(doorman.evictions)
    log.level, log.propagate = before


def evict(name):
    """As FLARE does it when a second connection of one name is opened."""
    endpoint = SfmEndpoint(Endpoint(name))
    for number in ("1", "2"):
        conn = SimpleNamespace(close=lambda: None)
        endpoint.add_connection(SimpleNamespace(conn=conn, get_name=lambda number=number: f"CN{number}"))


def test_a_second_site_of_one_party_is_turned_away_for_a_minute(doorman, capsys, monkeypatch):
    doorman.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop"))
    doorman.handle_event(EventType.CLIENT_REGISTER_PROCESSED, event("shop", "shop"))
    evict("shop")
    with pytest.raises(NotAuthenticated, match="shop is connected already, from another process"):
        doorman.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    doorman.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("clinic", "shop"))
    monkeypatch.setattr(greet, "EVICTION_S", 0.0)
    with pytest.raises(NotAuthenticated):
        doorman.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    monkeypatch.setattr(greet, "CLOSED_S", 0.0)
    doorman.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    doorman.handle_event(EventType.CLIENT_QUIT, event("shop", "clinic"))
    twice = f"anyparty> shop {greet.TWICE}; a second one was turned away: the kit of shop is in use twice"
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is connected; there are 1 of 2 others: shop",
        twice,
        twice,
        "anyparty> shop left; there are 1 of 2 others: clinic",
    ]


def test_a_site_says_when_its_server_is_lost_and_found(capsys):
    visitor = greet.Visitor("shop", "vfl.bank.example:8002")
    asked, answered = EventType.BEFORE_CLIENT_HEARTBEAT, EventType.AFTER_CLIENT_HEARTBEAT
    for what in (asked, answered, asked, answered, asked, asked, asked, asked, answered, asked, answered):
        visitor.handle_event(what, None)
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is connected to vfl.bank.example:8002",
        "anyparty> vfl.bank.example:8002 does not answer; trying again until it does (Ctrl-C to stop)",
        "anyparty> shop is connected to vfl.bank.example:8002",
    ]
