"""Sites that connect and leave: FLARE's events and the lines on the terminal."""

import contextlib
import io
import json
import logging
import threading
import time
from types import SimpleNamespace

import pytest

from anyparty.deployment.flare import admission

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")

from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey, RunProcessKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.f3.sfm.sfm_endpoint import Endpoint, SfmEndpoint
from nvflare.fuel.sec import audit
from nvflare.private.admin_defs import Message as Request
from nvflare.private.defs import RequestHeader, SysCommandTopic
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.fed_server import FederatedServer

UNTOUCHED = tuple(ClientRequestProcessors.request_processors)


@pytest.fixture(autouse=True)
def restore_request_processors(monkeypatch):
    """Let each test start with all of FLARE's request processors."""
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", list(UNTOUCHED))


def event(name, *clients):
    peer = SimpleNamespace(get_identity_name=lambda: name, get_prop=lambda _: None)
    manager = SimpleNamespace(clients={each: SimpleNamespace(name=each) for each in clients})
    engine = SimpleNamespace(client_manager=manager)
    return SimpleNamespace(get_peer_context=lambda: peer, get_engine=lambda: engine)


def client_context(*, closed=False):
    """Return the context of a client whose connection to the server is open or closed."""
    cell = SimpleNamespace(is_cell_connected=lambda name: name == "server" and not closed)
    context = FLContext()
    context.get_engine = lambda: SimpleNamespace(get_cell=lambda: cell)
    return context


@pytest.fixture
def controller(tmp_path):
    controller = admission.AdmissionController(parties=3, kit=str(tmp_path))
    log = logging.getLogger("nvflare.fuel.f3.sfm.sfm_endpoint")
    before = log.level, log.propagate
    controller.handle_event(EventType.SYSTEM_START, None)
    yield controller
    log.removeHandler(controller.evictions)
    log.level, log.propagate = before


def evict(name):
    """Open a second connection of one name, upon which FLARE evicts the first."""
    endpoint = SfmEndpoint(Endpoint(name))
    for number in ("1", "2"):
        conn = SimpleNamespace(close=lambda: None)
        endpoint.add_connection(SimpleNamespace(conn=conn, get_name=lambda number=number: f"CN{number}"))


def test_a_second_site_of_a_party_is_rejected_for_a_minute(controller, capsys, monkeypatch):
    controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop"))
    controller.handle_event(EventType.CLIENT_REGISTER_PROCESSED, event("shop", "shop"))
    evict("shop")
    with pytest.raises(NotAuthenticated, match="shop is connected already, from another process"):
        controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("clinic", "shop"))
    monkeypatch.setattr(admission, "EVICTION_S", 0.0)
    with pytest.raises(NotAuthenticated):
        controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    monkeypatch.setattr(admission, "CLOSED_S", 0.0)
    controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))
    controller.handle_event(EventType.CLIENT_QUIT, event("shop", "clinic"))
    twice = f"anyparty> shop {admission.TWICE}; a second connection was rejected: the kit of shop is in use twice"
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is connected; there are 1 of 2 others: shop",
        twice,
        twice,
        "anyparty> shop left; there are 1 of 2 others: clinic",
    ]


@pytest.mark.parametrize(("later_s", "let_in"), [(20.0, False), (40.0, True)])
def test_a_second_site_that_registers_late_is_rejected_too(controller, monkeypatch, later_s, let_in):
    evict("shop")
    now = admission.time.monotonic() + later_s
    monkeypatch.setattr(admission.time, "monotonic", lambda: now)
    refused = contextlib.nullcontext() if let_in else pytest.raises(NotAuthenticated)
    with refused:
        controller.handle_event(EventType.CLIENT_REGISTER_RECEIVED, event("shop", "shop"))


def test_a_site_reports_when_its_server_is_lost_and_reconnected(capsys):
    monitor = admission.ConnectionMonitor("shop", "vfl.bank.example:8002")
    asked, answered = EventType.BEFORE_CLIENT_HEARTBEAT, EventType.AFTER_CLIENT_HEARTBEAT
    for what in (asked, answered, asked, answered, asked, asked, asked, asked, answered, asked, answered):
        monitor.handle_event(what, client_context())
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is connected to vfl.bank.example:8002",
        "anyparty> vfl.bank.example:8002 does not answer; trying again until it does (Ctrl-C to stop)",
        "anyparty> shop is connected to vfl.bank.example:8002",
    ]


def test_a_heartbeat_on_a_closed_connection_does_not_count_as_an_answer(capsys):
    monitor = admission.ConnectionMonitor("shop", "vfl.bank.example:8002")
    for closed in (False, True, True, False):
        monitor.handle_event(EventType.BEFORE_CLIENT_HEARTBEAT, client_context())
        monitor.handle_event(EventType.AFTER_CLIENT_HEARTBEAT, client_context(closed=closed))
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is connected to vfl.bank.example:8002",
        "anyparty> vfl.bank.example:8002 does not answer; trying again until it does (Ctrl-C to stop)",
        "anyparty> shop is connected to vfl.bank.example:8002",
    ]


def test_a_client_registered_with_an_earlier_server_is_reported_once(controller, capsys):
    for what, there in (("RECEIVED", ()), ("PROCESSED", ("shop",)), ("PROCESSED", ("shop",))):
        controller.handle_event(getattr(EventType, f"CLIENT_HEARTBEAT_{what}"), event("shop", *there))
    assert capsys.readouterr().out == "anyparty> shop is connected; there are 1 of 2 others: shop\n"


class Server:
    """A server's engine with these clients, their open connections, and the participants of a job."""

    def __init__(self, names, works=()):
        clients = {f"t-{name}": SimpleNamespace(name=name, token=f"t-{name}") for name in names}
        self.client_manager, self.open_ = SimpleNamespace(clients=clients), set(names)
        self.run_processes = {"job": {RunProcessKey.PARTICIPANTS: {f"t-{name}": None for name in works}}, "new": {}}
        self.server = SimpleNamespace(logout_client=clients.pop)

    def get_cell(self):
        return SimpleNamespace(is_cell_connected=lambda name: name in self.open_)


def test_a_site_whose_connection_stays_closed_is_reported_and_removed(controller, capsys):
    server = Server(["shop", "clinic"])
    controller.reported = {"shop", "clinic"}
    controller.check_connections(server, 0.0)
    server.open_ = {"clinic"}
    controller.check_connections(server, 5.0)
    assert controller.check_connections(server, 5.0 + admission.LOST_S) == set()
    assert controller.check_connections(server, 6.0 + admission.LOST_S) == {"shop"}
    controller.check_connections(server, 5.0 + admission.AWAY_S)
    assert "t-shop" in server.client_manager.clients
    controller.check_connections(server, 10.0 + admission.AWAY_S)
    assert list(server.client_manager.clients) == ["t-clinic"]
    controller.check_connections(server, 20.0 + admission.AWAY_S)
    assert capsys.readouterr().out == (
        "anyparty> shop is gone, its connection is closed; there are 1 of 2 others: clinic\n"
    )


def test_a_site_without_heartbeats_is_silent():
    server = Server(["shop", "clinic"])
    times = {"shop": time.time() - admission.SILENT_S - 1, "clinic": time.time() - admission.SILENT_S + 5}
    for client in server.client_manager.clients.values():
        client.last_connect_time = times[client.name]
    assert admission.silent_sites(server) == {"shop"}


def test_a_client_removed_during_the_check_does_not_end_the_checks(controller, monkeypatch, capsys):
    server, flare, looks = Server([]), FederatedServer.__new__(FederatedServer), [0.0, 20.0, 25.0, 45.0]
    flare.client_manager, flare.tokens, flare.admin_server, flare.engine = ClientManager(), {}, None, server
    flare.client_manager.clients |= {f"t-{name}": Client(name, f"t-{name}") for name in ("shop", "clinic")}
    server.client_manager, server.server = flare.client_manager, flare
    server.job_runner = SimpleNamespace(get_client_outcome_jobs=lambda _: set())
    server.get_cell = lambda: SimpleNamespace(is_cell_connected=connected)
    controller.reported = {"shop", "clinic"}

    def connected(name):
        if name == "shop" and len(looks) == 2:  # during the check, another thread removes the client
            flare.client_manager.remove_client("t-shop")
        return name == "clinic" and len(looks) > 1

    def sleep(_):
        if not looks:
            raise TimeoutError

    monkeypatch.setattr(admission, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: looks.pop(0)))
    with pytest.raises(TimeoutError):
        controller._check_often(server)
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> shop is gone, its connection is closed; there are 1 of 2 others: clinic",
        "anyparty> clinic is gone, its connection is closed; there are 0 of 2 others: ",
    ]
    assert not flare.client_manager.clients


def test_a_failing_job_runner_is_reported_once_until_it_recovers(controller, capsys, tmp_path):
    controller.job_runner_guard._failed(OSError(24, "Too many open files"))
    controller.report_health({"shop"})
    controller.report_health({"shop"})
    controller.job_runner_guard.last = 0.0
    controller.report_health(set())
    controller.report_health(set())
    assert capsys.readouterr().out.splitlines() == [
        "anyparty> jobs cannot be started (OSError: [Errno 24] Too many open files); trying again",
        "anyparty> jobs can be started again",
    ]
    assert json.loads((tmp_path / "health.json").read_text())["error"] == ""


def test_unfinished_jobs_of_an_earlier_server_are_ended(monkeypatch):
    server, left, context = Server([]), [], FLContext()
    server.job_runner = SimpleNamespace(update_abnormal_finished_jobs=lambda running, _: left.append(running))
    context.get_engine = lambda: server
    monkeypatch.setattr(admission.threading, "Thread", lambda **_: SimpleNamespace(start=lambda: None))
    controller, log = admission.AdmissionController(parties=2), logging.getLogger("nvflare.fuel.f3.sfm.sfm_endpoint")
    before = log.level, log.propagate
    controller.handle_event(EventType.SYSTEM_START, context)
    log.removeHandler(controller.evictions)
    log.level, log.propagate = before
    assert left == [[]]


def test_a_connection_restored_in_time_is_not_reported_as_gone(controller, capsys):
    server = Server(["shop"])
    for at, there in (
        (0.0, False),
        (admission.AWAY_S, True),
        (admission.AWAY_S + 5, False),
        (2 * admission.AWAY_S, False),
    ):
        server.open_ = {"shop"} if there else set()
        controller.check_connections(server, at)
    assert server.client_manager.clients
    assert not capsys.readouterr().out


def test_a_participant_of_a_job_is_reported_as_gone_but_not_removed(controller, capsys):
    server = Server(["shop", "clinic"], works=["shop"])
    controller.reported, server.open_ = {"shop", "clinic"}, set()
    controller.check_connections(server, 0.0)
    controller.check_connections(server, admission.AWAY_S + 1)
    assert list(server.client_manager.clients) == ["t-shop"]
    assert [line.split(";")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"anyparty> {name} is gone, its connection is closed" for name in ("clinic", "shop")
    ]


def test_lines_printed_by_two_threads_do_not_mix(monkeypatch):
    others = []

    class Terminal(io.StringIO):
        def write(self, text):
            size = super().write(text)
            if not others:  # the first thread has written its first part: start the second one now
                others.append(threading.Thread(target=admission.say, args=("shop is connected",)))
                others[0].start()
                others[0].join(10.0)
            return size

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    admission.say("clinic is connected")
    assert terminal.getvalue().splitlines() == ["anyparty> clinic is connected", "anyparty> shop is connected"]


class SiteContext:
    """The parts of a site's context that its agent needs."""

    @contextlib.contextmanager
    def new_context(self):
        yield FLContext()

    def get_component(self, name):
        return None

    def fire_event(self, *what):
        pass


def site_answer(command):
    """Return a site's answer to a server whose own request says that the site's rules need not be checked."""
    agent = FedAdminAgent.__new__(FedAdminAgent)
    agent.auditor, agent.processors, agent.app_ctx = None, {}, SiteContext()
    for each in ClientRequestProcessors.request_processors:
        agent.register_processor(each)
    request = Request(topic=SysCommandTopic.SHELL, body=command)
    request.set_header(RequestHeader.REQUIRE_AUTHZ, "false")
    return agent._dispatch_request(CellMessage({}, request)).payload.body


def test_a_site_answers_only_requests_that_jobs_need(tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text("id,spent\n1,54321\n", encoding="utf-8")
    every = list(UNTOUCHED)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", every)
    assert "54321" in site_answer(f"cat {tmp_path}/table.csv"), "FLARE's own way, where nothing is taken away"
    admission.ConnectionMonitor("shop", "vfl.bank.example:8002")
    assert "54321" not in site_answer(f"cat {tmp_path}/table.csv")
    assert {type(each).__name__ for each in every} == admission.ANSWERED


def test_a_site_does_not_start_if_flare_lacks_a_request_processor(monkeypatch):
    few = [each for each in UNTOUCHED if type(each).__name__ != "DeployProcessor"]
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", few)
    with pytest.raises(RuntimeError, match=r"has no \['DeployProcessor'\]"):
        admission.ConnectionMonitor("shop", "vfl.bank.example:8002")
    assert len(few) == len(UNTOUCHED) - 1


def test_polling_is_not_written_to_the_audit_log(tmp_path, monkeypatch):
    """A running service polls every second."""
    monkeypatch.setattr(audit, "EXCLUDED_ACTIONS", audit.EXCLUDED_ACTIONS)
    auditor = audit.Auditor(str(tmp_path / "audit.log"))
    told = ["job_mgmt.submit_job anyparty", "abort_job 7"]
    looks = ["check_status server", "get_job_meta ca7c420e"]
    admission.exclude_polling_from_audit()
    for action in [*looks, *told, "_commands"]:
        auditor.add_event("admin", action)
    auditor.close()
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert [line.partition("[A:")[2].rstrip("]") for line in lines] == told


def test_clock_differences_are_stored_and_large_ones_are_reported(tmp_path, monkeypatch, capsys):
    controller, monitor = (
        admission.AdmissionController(parties=2, kit=str(tmp_path)),
        admission.ConnectionMonitor("shop", "vfl.bank.example:8002"),
    )

    def beat(there, here):
        """Send a heartbeat at time ``there`` on the client's clock, received at ``here`` on the server's clock."""
        at_client = FLContext()
        monkeypatch.setattr(admission.time, "time", lambda: there)
        monitor.handle_event(EventType.BEFORE_CLIENT_HEARTBEAT, at_client)
        peer = FLContext()  # FLARE sends the public properties along
        peer.set_public_props(at_client.get_all_public_props() | {ReservedKey.IDENTITY_NAME: "shop"})
        at_server = FLContext()
        at_server.set_peer_context(peer)
        monkeypatch.setattr(admission.time, "time", lambda: here)
        controller.handle_event(EventType.CLIENT_HEARTBEAT_RECEIVED, at_server)
        path = tmp_path / admission.CLOCKS
        return json.loads(path.read_text())["shop"] if path.exists() else None

    first = beat(1000.0, 1000.2)
    assert first == {"behind_s": 0.2, "at": "1970-01-01T00:16:40+00:00"}
    assert beat(1010.0, 1010.5) == first  # almost the same: not written again
    assert beat(1020.0, 720.0)["behind_s"] == -300.0
    assert capsys.readouterr().out.splitlines() == ["anyparty> the clock of shop is 300 s ahead of this one; set both"]


def test_clocks_reported_at_the_same_time_are_all_stored(tmp_path, monkeypatch):
    controller, written, others = admission.AdmissionController(parties=3, kit=str(tmp_path)), admission.writing, []

    def beat(name):
        peer, at_server = FLContext(), FLContext()
        peer.set_public_props({admission.CLOCK: admission.time.time(), ReservedKey.IDENTITY_NAME: name})
        at_server.set_peer_context(peer)
        controller.handle_event(EventType.CLIENT_HEARTBEAT_RECEIVED, at_server)

    @contextlib.contextmanager
    def writing(path):
        with written(path) as beside:
            yield beside
            if not others:  # the first has written, but its file is not in place yet: start the second
                others.append(threading.Thread(target=beat, args=("shop",)))
                others[0].start()
                others[0].join(0.5)

    monkeypatch.setattr(admission, "writing", writing)
    beat("clinic")
    others[0].join(10.0)
    assert sorted(json.loads((tmp_path / admission.CLOCKS).read_text())) == ["clinic", "shop"]


def test_a_heartbeat_without_a_clock_stores_nothing(tmp_path):
    controller, at_server = admission.AdmissionController(parties=2, kit=str(tmp_path)), FLContext()
    at_server.set_peer_context(FLContext())
    controller.handle_event(EventType.CLIENT_HEARTBEAT_RECEIVED, at_server)
    assert not list(tmp_path.iterdir())
