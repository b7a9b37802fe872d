"""Each check of the machine, with a good and a bad result."""

import collections
import socket
from importlib.metadata import version

import pytest
import torch
from packaging.requirements import Requirement

from anyparty.cli import doctor
from anyparty.errors import ConfigError


def levels(findings):
    return {finding.check: finding.level for finding in findings}


def only(findings):
    (finding,) = findings
    return finding


def test_versions_are_checked(monkeypatch):
    fine = only(doctor.check_versions())
    assert fine.level == "fine"
    assert f"torch {version('torch')}" in fine.result
    wanted = ["numpy>=99", "torch", "no-such-package", "mystery; extra == 'serve'"]
    monkeypatch.setattr(doctor, "requires", lambda _: wanted)
    bad = only(doctor.check_versions())
    assert bad.level == "fix"
    assert "required is >=99" in bad.result
    assert "no-such-package is not installed" in bad.result
    assert "mystery" not in bad.result
    assert bad.advice


def test_requirements_are_those_of_the_distribution():
    always = {each.name for each in doctor.requirements()}
    assert {"torch", "polars", "typer"} <= always
    assert {each.name for each in doctor.requirements("serve")} >= {"fastapi", "uvicorn"}
    assert not always & {each.name for each in doctor.requirements("serve")}


def test_missing_extras_are_reported(monkeypatch):
    monkeypatch.setattr(doctor, "EXTRAS", {"one": "its use", "two": "another", "three": "a third"})
    wanted = ["numpy; extra == 'one'", "no-such-package; extra == 'two'", "no-such; extra == 'three'",
              "numpy>=99; extra == 'three'"]  # fmt: skip
    monkeypatch.setattr(doctor, "requires", lambda _: wanted)
    one, two, three = doctor.check_extras()
    assert (one.level, one.advice) == ("fine", "")
    assert (two.level, two.advice) == ("note", 'for another: pip install "anyparty[two]"')
    assert (three.level, three.advice) == ("fix", 'pip install "anyparty[three]"')


def test_every_extra_for_users_is_checked():
    extras = {str(each.marker) for line in doctor.requires("anyparty") if (each := Requirement(line)).marker}
    named = {marker.partition('"')[2].partition('"')[0] for marker in extras}
    assert named - {"dev", "docs"} <= doctor.EXTRAS.keys()


def test_the_number_of_threads_is_checked(monkeypatch):
    monkeypatch.setattr(doctor, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert levels(doctor.check_torch())["threads"] == "fine"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    threads, _ = doctor.check_torch()
    assert (threads.level, threads.advice) == ("fix", "export OMP_NUM_THREADS=4")


@pytest.mark.parametrize(
    ("there", "built", "level", "said"),
    [
        (True, "12.8", "fine", "a card; train.device = 'cuda' uses it"),
        (False, "12.8", "note", "finds none"),
        (False, None, "fine", "cpu"),
    ],
)
def test_the_device_is_checked(monkeypatch, there, built, level, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.version, "cuda", built)
    _, device = doctor.check_torch()
    assert device.level == level
    assert said in device.result
    assert bool(device.advice) == (level != "fine")


def test_ports_in_use_are_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        bad = only(doctor.check_ports([port]))
        assert (bad.level, bad.check) == ("note", f"port {port}")
        assert "cannot be used" in bad.result
        assert "--port" in bad.advice
    assert only(doctor.check_ports([port])).level == "fine"


@pytest.mark.parametrize(("free", "level"), [(5e8, "fix"), (5e9, "note"), (5e10, "fine")])
def test_free_disk_space_is_checked(monkeypatch, tmp_path, free, level):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage(1e12, 0, free))
    found = only(doctor.check_disk(tmp_path))
    assert found.level == level
    assert str(tmp_path) in found.result
    assert bool(found.advice) == (level != "fine")


def test_an_unwritable_folder_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.os, "access", lambda _, mode: mode != doctor.os.W_OK)
    found = only(doctor.check_disk(tmp_path))
    assert found.level == "fix"
    assert "cannot be written to" in found.result


def test_the_data_set_folder_and_cache_are_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANYPARTY_DATA", raising=False)
    assert levels(doctor.check_data_sets()) == {"data sets": "note", "cache": "fine"}
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "nothing"))
    data, _ = doctor.check_data_sets()
    assert data.level == "fix"
    assert str(tmp_path / "nothing") in data.result
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "data"))
    assert levels(doctor.check_data_sets())["data sets"] == "fine"
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "file" / "cache"))
    assert levels(doctor.check_data_sets())["cache"] == "fix"


def test_the_doctor_command_prints_all_checks(call, monkeypatch, tmp_path):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path))
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path))
    monkeypatch.setattr(doctor, "cores", lambda: 4096)
    shown = call("doctor")
    assert shown.exit_code == 0, shown.stdout
    assert "Nothing to fix." in shown.stdout
    assert [finding.check for finding in doctor.examine() if finding.check not in shown.stdout] == []
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "nothing"))
    shown = call("doctor")
    assert shown.exit_code == 2
    assert "1 to fix." in shown.stdout


def test_a_path_that_is_neither_a_federation_nor_a_kit_is_refused(call, tmp_path):
    with pytest.raises(ConfigError, match="neither a federation's folder"):
        doctor.examine(tmp_path)
    shown = call("doctor", tmp_path)
    assert shown.exit_code == 2
    assert "neither a federation's folder" in shown.stderr.replace("\n", " ")
