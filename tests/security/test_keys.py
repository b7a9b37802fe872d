"""A private key is only in its own party's kit, no matter which party created it."""

import base64
import json
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import polars as pl
import pytest

from anyparty.core.types import Party, Roster
from anyparty.deployment.flare import federation_folder
from anyparty.deployment.flare.admin import read_federation
from anyparty.deployment.flare.preflight import ServerAddress, check_certificate, check_key
from anyparty.deployment.flare.site_config import SiteConfig
from anyparty.errors import ConfigError
from tests.conftest import Call, write_tables
from tests.ports import free_port
from tests.slow_parameters import slow_but

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
NAMES = ["bank", "shop", "clinic"]
ROSTER = Roster(tuple(Party(name=name) for name in NAMES), "bank")
PEM = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)


def keys_in(folder: Path) -> dict[str, int]:
    """Return the files that hold a private key, as PEM, in JSON, base64, ZIP or PKCS12, with their modes."""
    found = {}
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        texts = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                texts += [zipped.read(name) for name in zipped.namelist()]
        for text in list(texts):
            runs = re.findall(rb"[A-Za-z0-9+/]{200,}", text)
            texts += [base64.b64decode(run[: len(run) // 4 * 4]) for run in runs]
        if path.suffix in {".pfx", ".p12"} or any(b"PRIVATE KEY-----" in text for text in texts):
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


def secret_of(path: Path) -> bytes:
    """Return the secret text of a key file: the text between its PEM marks."""
    return re.sub(rb"\s", b"", PEM.search(path.read_bytes())[1])


def anywhere(secret: bytes, folder: Path) -> list[Path]:
    """Return the files of a folder that contain a key's text, with any line breaks."""
    plain = {path: re.sub(rb"\s|\\n", b"", path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
    return [path for path, text in plain.items() if secret in text]


def add_to(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "house"
    federation_folder.init(folder, ROSTER, "vfl.bank.example")
    return folder


def test_init_leaves_each_key_in_its_own_kit_alone(plain: Path) -> None:
    assert keys_in(plain) == {
        "authority/rootCA.key": 0o600, "kits/admin/startup/client.key": 0o600, "kits/bank/startup/server.key": 0o600,
        "kits/clinic/startup/client.key": 0o600, "kits/shop/startup/client.key": 0o600,
    }  # fmt: skip
    for name in ("authority", *(f"kits/{each}" for each in [*NAMES, "admin"])):
        assert stat.S_IMODE((plain / name).stat().st_mode) == 0o700, name
    for name in ("kits/shop/startup/client.key", "authority/rootCA.key"):
        assert anywhere(secret_of(plain / name), plain) == [plain / name]
    assert sorted(each.name for each in (plain / "authority").iterdir()) == [
        "ca.json", "profile.json", "project.yml", "rootCA.key", "rootCA.pem"
    ]  # fmt: skip
    for name in NAMES:
        check_certificate(ServerAddress.of(plain / "kits" / name, name))


def test_a_key_that_was_handed_over_is_gone(tmp_path: Path, plain: Path) -> None:
    """After a kit has moved to its party, the leading party's folder contains nothing of its key."""
    house = tmp_path / "house"
    shutil.copytree(plain, house)
    shutil.move(house / "kits" / "shop", tmp_path / "shop")
    assert not anywhere(secret_of(tmp_path / "shop" / "startup" / "client.key"), house)


def test_a_federation_is_not_made_twice_in_one_folder(plain: Path) -> None:
    before = keys_in(plain)
    with pytest.raises(ConfigError, match="holds a federation already; name another folder, or remove it"):
        federation_folder.init(plain, ROSTER)
    assert keys_in(plain) == before


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("requests") / "house"
    federation_folder.init(folder, ROSTER, "vfl.bank.example", 8002, requests=True)
    return folder


@pytest.mark.slow
def test_with_requests_the_leader_holds_no_key_of_another_party(house: Path, tmp_path: Path) -> None:
    own = {"authority/rootCA.key": 0o600, "kits/admin/startup/client.key": 0o600, "kits/bank/startup/server.key": 0o600}
    assert keys_in(house) == own
    asked = federation_folder.request(tmp_path / "shop", "shop")
    assert keys_in(tmp_path) == {"shop/request/shop.key": 0o600}
    secret = secret_of(tmp_path / "shop" / "request" / "shop.key")
    name, approval = federation_folder.approve(house, asked.file, fingerprint=asked.fingerprint)
    assert name == "shop"
    assert keys_in(house) == own
    found = federation_folder.install(tmp_path / "shop", approval.file, fingerprint=approval.fingerprint)
    assert found == approval.fingerprint
    assert keys_in(tmp_path) == {"shop/startup/client.key": 0o600}
    assert secret_of(tmp_path / "shop" / "startup" / "client.key") == secret
    assert stat.S_IMODE((tmp_path / "shop").stat().st_mode) == 0o700
    gate = ServerAddress.of(tmp_path / "shop", "shop")
    check_certificate(gate)
    check_key(gate, pytest.fail)
    assert gate.place == "vfl.bank.example:8002"
    site = SiteConfig.read(tmp_path / "shop")
    assert (site.party, site.active, site.parties) == ("shop", "bank", tuple(NAMES))

    # renewal: the same settings, with a new key and certificate of the same authority
    add_to(tmp_path / "shop" / "local" / "anyparty.toml", 'table = "shop.csv"\n')
    again = federation_folder.request(tmp_path / "shop", "shop")
    with pytest.raises(ConfigError, match="party 'shop' was approved already; send it, or sign the new request"):
        federation_folder.approve(house, again.file)
    _, renewed = federation_folder.approve(house, again.file, again=True)
    federation_folder.install(tmp_path / "shop", renewed.file)
    assert secret_of(tmp_path / "shop" / "startup" / "client.key") != secret
    assert SiteConfig.read(tmp_path / "shop").table == tmp_path / "shop" / "shop.csv"
    check_certificate(ServerAddress.of(tmp_path / "shop", "shop"))
    with pytest.raises(ConfigError, match=r"the kit of 'shop', 'clinic' is not in .*start each party where its kit is"):
        federation_folder.start(house)


def test_a_request_is_not_replaced_unasked(tmp_path: Path) -> None:
    federation_folder.request(tmp_path / "shop", "shop")
    secret = secret_of(tmp_path / "shop" / "request" / "shop.key")
    with pytest.raises(ConfigError, match="a request is here already; send it, or replace it and its key with --again"):
        federation_folder.request(tmp_path / "shop", "shop")
    federation_folder.request(tmp_path / "shop", "shop", again=True)
    assert secret_of(tmp_path / "shop" / "request" / "shop.key") != secret


def other_request(folder: Path, **participant: str) -> Path:
    """Make a request by FLARE itself, for any participant."""
    described = folder / "participant.json"
    described.write_text(json.dumps({"name": "anyparty", "participants": [participant]}))
    command = [
        sys.executable,
        "-m",
        "nvflare.cli",
        "cert",
        "request",
        "-p",
        str(described),
        "--out",
        str(folder / "made"),
    ]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    (file,) = (folder / "made").glob("*.request.zip")
    return file


@pytest.mark.parametrize(
    ("participant", "said"),
    slow_but([
        ({"name": "vfl.bank.example", "org": "bank", "type": "server"}, "this request is for a 'server' certificate"),
        ({"name": "eve@bank.example", "org": "bank", "type": "admin", "role": "lead"}, "is for a 'lead' certificate"),
        ({"name": "bank", "org": "bank", "type": "client"}, "is of 'bank', and the federation's passive parties are"),
        (
            {"name": "mallory", "org": "mallory", "type": "client"},
            r"is of 'mallory', .* parties are \['shop', 'clinic'\]",
        ),
        ({"name": "shop", "org": "bank", "type": "client"}, "names the organisation 'bank', not 'shop'"),
    ], lambda way: "role" in way[0]),
)  # fmt: skip
def test_only_a_passive_party_gets_a_certificate(house: Path, tmp_path: Path, participant, said: str) -> None:
    """FLARE signs any request; a certificate for an administrator would control the federation."""
    with pytest.raises(ConfigError, match=said):
        federation_folder.approve(house, other_request(tmp_path, **participant), again=True)


def rewritten(file: Path, out: Path, name: str, text: bytes) -> Path:
    """Copy a ZIP file, with another text in one of its files."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for each in old.namelist():
            new.writestr(each, text if each == name else old.read(each))
    return out


@pytest.mark.slow
def test_what_was_changed_on_its_way_is_refused(house: Path, tmp_path: Path) -> None:
    asked = federation_folder.request(tmp_path / "clinic", "clinic")
    with pytest.raises(ConfigError, match="the request may have been replaced on its way; ask party 'clinic'"):
        federation_folder.approve(house, asked.file, fingerprint="0" * 64)
    swapped = federation_folder.request(tmp_path / "eve" / "clinic", "clinic")
    with pytest.raises(ConfigError, match="the request may have been replaced"):
        federation_folder.approve(house, swapped.file, fingerprint=asked.fingerprint)
    with zipfile.ZipFile(swapped.file) as theirs:
        csr = theirs.read("clinic.csr")
    with pytest.raises(ConfigError, match="'nvflare cert approve' reports"):  # another key, honest hashes
        federation_folder.approve(house, rewritten(asked.file, tmp_path / "a.zip", "clinic.csr", csr))
    _, approval = federation_folder.approve(house, asked.file, fingerprint=asked.fingerprint.upper())
    more = json.dumps({"request": "", "party": "clinic", "active": "eve", "parties": ["eve", "clinic"]}).encode()
    changed = rewritten(approval.file, tmp_path / "b.zip", "federation.json", more)
    with pytest.raises(ConfigError, match="the list of parties in it is not signed by the federation's authority"):
        federation_folder.install(tmp_path / "clinic", changed)
    with pytest.raises(ConfigError, match="'nvflare package' reports"):
        federation_folder.install(tmp_path / "clinic", approval.file, fingerprint="0" * 64)
    with pytest.raises(ConfigError, match="'nvflare package' reports"):  # an approval of another request
        federation_folder.install(tmp_path / "eve" / "clinic", approval.file)
    assert not (tmp_path / "clinic" / "startup").exists()
    federation_folder.install(tmp_path / "clinic", approval.file, fingerprint=approval.fingerprint)


def test_what_is_no_request_or_approval_is_refused(house: Path, tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as zipped:
        zipped.writestr("a", "b")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("request.json", b"[" * 20_000_000)
    with zipfile.ZipFile(tmp_path / "deep.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("request.json", b"[" * 100_000)
    for name, said in (("absent", "cannot be read"), ("text", "this is not a ZIP file"), ("empty", "not a request"),
                       ("bomb", "larger than 10,485,760 bytes"), ("deep", "not a request")):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            federation_folder.approve(house, tmp_path / f"{name}.zip")
    with pytest.raises(ConfigError, match="there is no request here; run 'anyparty party request' first"):
        federation_folder.install(tmp_path / "none", tmp_path / "empty.zip")
    federation_folder.request(tmp_path / "shop", "shop")
    with pytest.raises(ConfigError, match="this is not an approval of 'anyparty federate approve'"):
        federation_folder.install(tmp_path / "shop", tmp_path / "empty.zip")
    with pytest.raises(ConfigError, match="is the kit of party 'bank', not of 'shop'; name another folder"):
        federation_folder.request(house / "kits" / "bank", "shop")


def test_the_key_of_the_authority_is_needed_to_approve(house: Path, tmp_path: Path) -> None:
    shutil.copytree(house, tmp_path / "house")
    (tmp_path / "house" / "authority" / "rootCA.key").unlink()
    with pytest.raises(ConfigError, match="the authority's key is not here; approve where"):
        federation_folder.approve(tmp_path / "house", tmp_path / "any.zip")


@pytest.mark.slow
def test_commands_say_what_each_party_types(work: Path, call: Call) -> None:
    """The test runs the printed commands."""
    (work / "credit.toml").write_text(
        (work / "credit.toml").read_text().replace("[federation]", '[federation]\nactive = "bank"')
    )
    shown = call("federate", "init", "credit.toml", "house", "--requests", "--host", "vfl.bank.example")
    assert shown.exit_code == 0, shown.output
    assert "shop runs: anyparty party request shop" in shown.stdout
    assert "then you run: anyparty federate approve house shop.request.zip" in shown.stdout
    made = call("party", "request", "shop")
    assert made.exit_code == 0, made.output
    shutil.copy(work / "shop" / "request" / "shop.request.zip", work)
    approved = call("federate", "approve", "house", "shop.request.zip")
    assert approved.exit_code == 0, approved.output
    assert "The fingerprint of shop's key was not compared" in approved.stderr
    assert len(re.findall(r"SHA256:([0-9A-F]{2}:){31}[0-9A-F]{2}$", approved.stdout, re.M)) == 1, approved.stdout
    installed = call("party", "install", "shop", "house/approved/shop.approved.zip")
    assert installed.exit_code == 0, installed.output
    assert "The authority's fingerprint was not compared" in installed.stderr
    fingerprint = re.search(r"SHA256:[0-9A-F:]+", approved.stdout)[0]
    assert fingerprint in installed.stderr
    assert "then start it: anyparty party start shop" in installed.stdout


def run(*words: object) -> str:
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "anyparty", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.net
def test_parties_that_made_their_own_keys_train_and_predict(tmp_path: Path) -> None:
    bank, shop = tmp_path / "bank", tmp_path / "shop"  # two machines' folders: only ZIP files are copied between them
    write_tables(bank)
    shop.mkdir()
    shutil.move(bank / "shop.csv", shop)
    settings = (bank / "credit.toml").read_text().replace('table = "shop.csv"\n', "")
    (bank / "credit.toml").write_text(settings.replace("[federation]", '[federation]\nactive = "bank"'))
    house, kit = bank / "house", shop / "kit"
    run("federate", "init", bank / "credit.toml", house, "--requests", "--port", free_port())
    told = run("party", "request", "shop", kit)
    secret = secret_of(kit / "request" / "shop.key")
    shutil.copy(kit / "request" / "shop.request.zip", bank)
    told = run("federate", "approve", house, bank / "shop.request.zip", "--fingerprint", told.split()[-1])
    shutil.copy(house / "approved" / "shop.approved.zip", shop)
    fingerprint = re.search(r"SHA256:[0-9A-F:]+", told)[0]
    run("party", "install", kit, shop / "shop.approved.zip", "--fingerprint", fingerprint)
    add_to(kit / "local" / "anyparty.toml", f'table = "{shop / "shop.csv"}"\nthreads = 1\n')
    started = []
    try:
        for place in (house / "kits" / "bank", kit):
            with (tmp_path / f"{place.name}.terminal").open("wb") as out:
                command = [sys.executable, "-m", "anyparty", "party", "start", str(place)]
                started.append(subprocess.Popen(command, stdout=out, stderr=out))  # noqa: S603
        end = time.monotonic() + 240
        while "is connected" not in (tmp_path / "bank.terminal").read_text():
            assert time.monotonic() < end, (tmp_path / "kit.terminal").read_text()
            time.sleep(0.5)
        said = run("federate", "train", house, bank / "credit.toml")
        assert "FINISHED:COMPLETED" in said
        run("federate", "predict", house, bank / "credit.toml", "--out", bank / "answers.csv")
        answers = pl.read_csv(bank / "answers.csv")
        assert len(answers) == 100
        assert "bank shop" in set(answers["parties"])
        assert (kit / "runs" / "parties" / "shop").is_dir()
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(60)
    assert not anywhere(secret, bank)
    assert anywhere(secret, shop) == [kit / "startup" / "client.key"]
    assert read_federation(house)["parties"] == ["bank", "shop"]
