"""Every look at a kit finds what is fine, and what is not."""

import json
from datetime import timedelta

import pytest

from anyparty import doctor
from anyparty.doctor import kit as looks
from tests.wire import test_flare_reach as kits

made, home, reissue, NOW = kits.made, kits.home, kits.reissue, kits.NOW  # two fixtures, and what spoils a certificate


def only(findings):
    (finding,) = findings
    return finding


@pytest.fixture
def bank(home):
    return home / "ours" / "kits" / "bank"


@pytest.fixture
def shop(home):
    return home / "ours" / "kits" / "shop"


def test_settings(shop):
    absent = only(looks.settings(shop))
    assert (absent.level, absent.do) == ("mend", 'write table = "file.csv" there')
    path = shop / "local" / "anyparty.toml"
    path.write_text('table = "shop.csv"\n' + path.read_text())
    lost = only(looks.settings(shop))
    assert lost.level == "mend"
    assert f"{shop / 'shop.csv'}, which is not there" in lost.said
    (shop / "shop.csv").touch()
    assert only(looks.settings(shop)).level == "fine"
    path.write_text("what?")
    assert "this is not TOML" in only(looks.settings(shop)).said


@pytest.mark.parametrize(("days", "level"), [(-1, "mend"), (5, "note"), (300, "fine")])
def test_certificate(home, days, level):
    kit = reissue(home / "ours", "shop", NOW - timedelta(days=30), NOW + timedelta(days=days))
    found = only(looks.certificate(kit))
    assert found.level == level
    assert f"{NOW + timedelta(days=days):%Y-%m-%d}" in found.said


def test_a_certificate_of_somebody_else(home):
    kit = reissue(home / "ours", "shop", NOW - timedelta(days=1), NOW + timedelta(days=300), name="clinic")
    found = only(looks.certificate(kit))
    assert found.level == "mend"
    assert "made out to" in found.said


def test_a_private_key_that_others_can_read(shop):
    assert only(looks.key(shop)).level == "fine"
    shop.chmod(0o755)
    (shop / "startup" / "client.key").chmod(0o644)
    found = only(looks.key(shop))
    assert found.level == "mend"
    assert f"chmod -R go= {shop}" in found.said


def test_the_port_of_who_leads(bank):
    gate = looks.Gate.of(bank)
    assert only(looks.line(bank)).level == "fine"
    with kits.listening(port=gate.port):
        found = only(looks.line(bank))
    assert found.level == "mend"
    assert f"port {gate.port} cannot be used" in found.said


def test_the_server_from_a_passive_party(bank, shop):
    port = looks.Gate.of(shop).port
    found = only(looks.line(shop))
    assert found.level == "note"
    assert "cannot be reached" in found.said
    with kits.greeted_by(bank, port):
        assert only(looks.line(shop)).level == "fine"
    with kits.listening(kits.babbles, port=port):
        assert only(looks.line(shop)).level == "mend"


def test_clocks(bank, shop):
    assert list(looks.clocks(shop)) == []  # they are kept where the server is
    assert only(looks.clocks(bank)).level == "note"
    kept = {"shop": {"behind_s": 0.4, "at": "2026-01-01T00:00:00+00:00"}}
    (bank / "clocks.json").write_text(json.dumps(kept | {"town": {**kept["shop"], "behind_s": -61.0}}))
    shop_clock, town_clock = looks.clocks(bank)
    assert (shop_clock.level, shop_clock.do) == ("fine", "")
    assert town_clock.level == "mend"
    assert "61 s ahead of this machine's" in town_clock.said


@pytest.mark.parametrize("kept", [3, {"at": "then"}, {"behind_s": None, "at": "then"}, {"behind_s": "much"}])
def test_a_damaged_file_of_clocks_is_said(bank, kept):
    (bank / "clocks.json").write_text(json.dumps({"shop": kept}))
    assert "is damaged: it does not say it" in only(looks.clocks(bank)).said


def test_a_folder_with_files_that_are_no_kits(home):
    (home / "ours" / "kits" / "shop" / "startup" / "fed_client.json").unlink()
    found = {each.what: each for each in doctor.examine(home / "ours")}
    assert found["shop: certificate"].level == found["shop: server"].level == "mend"
    assert "is not a kit" in found["shop: certificate"].said
    assert found["bank: certificate"].level == "fine"


def test_a_kit_whose_settings_are_gone_is_looked_at(home):
    (home / "ours" / "kits" / "shop" / "local" / "anyparty.toml").unlink()
    found = {each.what: each for each in doctor.examine(home / "ours")}
    assert found["shop: settings"].level == "mend"
    assert "no such file" in found["shop: settings"].said
    assert {what.partition(":")[0] for what in found if ":" in what} == {"bank", "shop"}


def test_one_kit_alone(shop):
    whats = {each.what for each in doctor.examine(shop)}
    assert {"shop: certificate", "shop: settings", "shop: server", "versions"} <= whats
    assert not any("bank" in what for what in whats)


def test_kits_without_flare(home, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    found = [each for each in doctor.examine(home / "ours") if each.what == "kits"]
    assert [(each.level, each.do) for each in found] == [("mend", 'pip install "anyparty[flare]"')]
