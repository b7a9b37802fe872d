"""Each check of a kit, with a good and a bad result."""

import json
from datetime import timedelta

import pytest

from anyparty.cli import doctor
from tests.deployment import test_preflight as kits

made, home, reissue, NOW = kits.made, kits.home, kits.reissue, kits.NOW  # fixtures, and a way to spoil certificates


def only(findings):
    (finding,) = findings
    return finding


@pytest.fixture
def bank(home):
    return home / "ours" / "kits" / "bank"


@pytest.fixture
def shop(home):
    return home / "ours" / "kits" / "shop"


def test_the_site_settings_are_checked(shop):
    absent = only(doctor.check_settings(shop))
    assert (absent.level, absent.advice) == ("fix", 'write table = "file.csv" there')
    path = shop / "local" / "anyparty.toml"
    path.write_text('table = "shop.csv"\n' + path.read_text())
    lost = only(doctor.check_settings(shop))
    assert lost.level == "fix"
    assert f"{shop / 'shop.csv'}, which does not exist" in lost.result
    (shop / "shop.csv").touch()
    assert only(doctor.check_settings(shop)).level == "fine"
    path.write_text("what?")
    assert "this is not TOML" in only(doctor.check_settings(shop)).result


@pytest.mark.parametrize(("days", "level"), [(-1, "fix"), (5, "note"), (300, "fine")])
def test_the_expiry_of_the_certificate_is_checked(home, days, level):
    kit = reissue(home / "ours", "shop", NOW - timedelta(days=30), NOW + timedelta(days=days))
    found = only(doctor.check_kit_certificate(kit))
    assert found.level == level
    assert f"{NOW + timedelta(days=days):%Y-%m-%d}" in found.result


def test_a_certificate_of_another_party_is_reported(home):
    kit = reissue(home / "ours", "shop", NOW - timedelta(days=1), NOW + timedelta(days=300), name="clinic")
    found = only(doctor.check_kit_certificate(kit))
    assert found.level == "fix"
    assert "the certificate names" in found.result


def test_a_private_key_readable_by_others_is_reported(shop):
    assert only(doctor.check_private_key(shop)).level == "fine"
    shop.chmod(0o755)
    (shop / "startup" / "client.key").chmod(0o644)
    found = only(doctor.check_private_key(shop))
    assert found.level == "fix"
    assert f"chmod -R go= {shop}" in found.result


def test_the_port_of_the_active_party_is_checked(bank):
    gate = doctor.ServerAddress.of(bank)
    assert only(doctor.check_connection(bank)).level == "fine"
    with kits.listening(port=gate.port):
        found = only(doctor.check_connection(bank))
    assert found.level == "fix"
    assert f"port {gate.port} cannot be used" in found.result


def test_a_passive_party_checks_the_server(bank, shop):
    port = doctor.ServerAddress.of(shop).port
    found = only(doctor.check_connection(shop))
    assert found.level == "note"
    assert "cannot be reached" in found.result
    with kits.greeted_by(bank, port):
        assert only(doctor.check_connection(shop)).level == "fine"
    with kits.listening(kits.answer_plain_http, port=port):
        assert only(doctor.check_connection(shop)).level == "fix"


def test_clock_differences_are_checked(bank, shop):
    assert list(doctor.check_clocks(shop)) == []  # they are kept where the server is
    assert only(doctor.check_clocks(bank)).level == "note"
    kept = {"shop": {"behind_s": 0.4, "at": "2026-01-01T00:00:00+00:00"}}
    (bank / "clocks.json").write_text(json.dumps(kept | {"town": {**kept["shop"], "behind_s": -61.0}}))
    shop_clock, town_clock = doctor.check_clocks(bank)
    assert (shop_clock.level, shop_clock.advice) == ("fine", "")
    assert town_clock.level == "fix"
    assert "61 s ahead of this machine's" in town_clock.result


@pytest.mark.parametrize("kept", [3, {"at": "then"}, {"behind_s": None, "at": "then"}, {"behind_s": "much"}])
def test_a_damaged_file_of_clocks_is_reported(bank, kept):
    (bank / "clocks.json").write_text(json.dumps({"shop": kept}))
    assert "is damaged" in only(doctor.check_clocks(bank)).result


def test_a_damaged_kit_in_a_federation_folder_is_reported(home):
    (home / "ours" / "kits" / "shop" / "startup" / "fed_client.json").unlink()
    found = {each.check: each for each in doctor.examine(home / "ours")}
    assert found["shop: certificate"].level == found["shop: server"].level == "fix"
    assert "is not a kit" in found["shop: certificate"].result
    assert found["bank: certificate"].level == "fine"


def test_a_kit_without_settings_is_checked(home):
    (home / "ours" / "kits" / "shop" / "local" / "anyparty.toml").unlink()
    found = {each.check: each for each in doctor.examine(home / "ours")}
    assert found["shop: settings"].level == "fix"
    assert "no such file" in found["shop: settings"].result
    assert {what.partition(":")[0] for what in found if ":" in what} == {"bank", "shop"}


def test_a_single_kit_can_be_checked(shop):
    whats = {each.check for each in doctor.examine(shop)}
    assert {"shop: certificate", "shop: settings", "shop: server", "versions"} <= whats
    assert not any("bank" in what for what in whats)


def test_checking_a_kit_without_flare_advises_its_installation(home, monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    found = [each for each in doctor.examine(home / "ours") if each.check == "kits"]
    assert [(each.level, each.advice) for each in found] == [("fix", 'pip install "anyparty[flare]"')]
