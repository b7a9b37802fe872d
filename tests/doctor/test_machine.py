"""Every look at the machine finds what is fine, and what is not."""

import collections
import socket
from importlib.metadata import version

import pytest
import torch
from packaging.requirements import Requirement

from anyparty import doctor
from anyparty.doctor import machine
from anyparty.errors import ConfigError


def levels(findings):
    return {finding.what: finding.level for finding in findings}


def only(findings):
    (finding,) = findings
    return finding


def test_versions(monkeypatch):
    fine = only(machine.versions())
    assert fine.level == "fine"
    assert f"torch {version('torch')}" in fine.said
    wanted = ["numpy>=99", "torch", "no-such-package", "mystery; extra == 'serve'"]
    monkeypatch.setattr(machine, "requires", lambda _: wanted)
    bad = only(machine.versions())
    assert bad.level == "mend"
    assert "asked for is >=99" in bad.said
    assert "no-such-package is not installed" in bad.said
    assert "mystery" not in bad.said
    assert bad.do


def test_what_is_asked_for_is_what_the_distribution_says():
    always = {each.name for each in machine.asked_for()}
    assert {"torch", "polars", "typer"} <= always
    assert {each.name for each in machine.asked_for("serve")} >= {"fastapi", "uvicorn"}
    assert not always & {each.name for each in machine.asked_for("serve")}


def test_extras(monkeypatch):
    monkeypatch.setattr(machine, "FOR", {"one": "its use", "two": "another", "three": "a third"})
    wanted = ["numpy; extra == 'one'", "no-such-package; extra == 'two'", "no-such; extra == 'three'",
              "numpy>=99; extra == 'three'"]  # fmt: skip
    monkeypatch.setattr(machine, "requires", lambda _: wanted)
    one, two, three = machine.extras()
    assert (one.level, one.do) == ("fine", "")
    assert (two.level, two.do) == ("note", 'for another: pip install "anyparty[two]"')
    assert (three.level, three.do) == ("mend", 'pip install "anyparty[three]"')


def test_every_extra_for_users_is_looked_at():
    extras = {str(each.marker) for line in machine.requires("anyparty") if (each := Requirement(line)).marker}
    named = {marker.partition('"')[2].partition('"')[0] for marker in extras}
    assert named - {"dev", "docs"} <= machine.FOR.keys()


def test_threads(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert levels(machine.torch_here())["threads"] == "fine"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 9)
    threads, _ = machine.torch_here()
    assert (threads.level, threads.do) == ("mend", "export OMP_NUM_THREADS=4")


@pytest.mark.parametrize(
    ("there", "built", "level", "said"),
    [
        (True, "12.8", "fine", "a card; train.device = 'cuda' uses it"),
        (False, "12.8", "note", "finds none"),
        (False, None, "fine", "cpu"),
    ],
)
def test_device(monkeypatch, there, built, level, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(torch.version, "cuda", built)
    _, device = machine.torch_here()
    assert device.level == level
    assert said in device.said
    assert bool(device.do) == (level != "fine")


def test_ports():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        bad = only(machine.ports([port]))
        assert (bad.level, bad.what) == ("note", f"port {port}")
        assert "cannot be used" in bad.said
        assert "--port" in bad.do
    assert only(machine.ports([port])).level == "fine"


@pytest.mark.parametrize(("free", "level"), [(5e8, "mend"), (5e9, "note"), (5e10, "fine")])
def test_disk(monkeypatch, tmp_path, free, level):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(1e12, 0, free))
    found = only(machine.disk(tmp_path))
    assert found.level == level
    assert str(tmp_path) in found.said
    assert bool(found.do) == (level != "fine")


def test_a_folder_that_cannot_be_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.os, "access", lambda _, mode: mode != machine.os.W_OK)
    found = only(machine.disk(tmp_path))
    assert found.level == "mend"
    assert "cannot be written to" in found.said


def test_data_sets(monkeypatch, tmp_path):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANYPARTY_DATA", raising=False)
    assert levels(machine.data_sets()) == {"data sets": "note", "cache": "fine"}
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "nothing"))
    data, _ = machine.data_sets()
    assert data.level == "mend"
    assert str(tmp_path / "nothing") in data.said
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "data"))
    assert levels(machine.data_sets())["data sets"] == "fine"
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path / "file" / "cache"))
    assert levels(machine.data_sets())["cache"] == "mend"


def test_the_command(call, monkeypatch, tmp_path):
    monkeypatch.setenv("ANYPARTY_CACHE", str(tmp_path))
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path))
    monkeypatch.setattr(machine, "cores", lambda: 4096)
    shown = call("doctor")
    assert shown.exit_code == 0, shown.stdout
    assert "Nothing to mend." in shown.stdout
    assert [finding.what for finding in doctor.examine() if finding.what not in shown.stdout] == []
    monkeypatch.setenv("ANYPARTY_DATA", str(tmp_path / "nothing"))
    shown = call("doctor")
    assert shown.exit_code == 2
    assert "1 to mend." in shown.stdout


def test_a_place_that_is_none(call, tmp_path):
    with pytest.raises(ConfigError, match="neither a federation's folder"):
        doctor.examine(tmp_path)
    shown = call("doctor", tmp_path)
    assert shown.exit_code == 2
    assert "neither a federation's folder" in shown.stderr.replace("\n", " ")
