"""A party of a real federation sends 1e30: the others continue with train.extreme = "drop"; otherwise the run ends."""

import os
from pathlib import Path

import pytest
import tomli_w

from anyparty.artifacts.model_files import read_json
from anyparty.core.types import Party, Roster
from anyparty.deployment import coordinator
from anyparty.deployment.flare import federation_folder as flare
from anyparty.deployment.site.site_training import train_at_site
from anyparty.errors import AnypartyWarning, RunError
from tests.deployment.test_site_training import NAMES, world
from tests.ports import free_port

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
pytestmark = pytest.mark.net
TOML = {
    "federation": {"label": "y", "active": "bank"},
    "parties": {name: {} for name in NAMES},
    "method": {"name": "laser", "embedding": 8},
    "train": {"epochs": 6, "batch_size": 4},
}


async def forging_shop(site, config, net, **asked):
    """Forge the shop's embeddings after some batches."""
    if site.party == "shop":
        send, sent = net.send, []

        async def forge(to, tag, tensors):
            sent.extend([tag] if tag == "embedding" else [])
            wild = tag == "embedding" and len(sent) > 40
            return await send(to, tag, {name: tensor * 1e30 for name, tensor in tensors.items()} if wild else tensors)

        net.send = forge
    return await train_at_site(site, config, net, **asked)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    home = tmp_path_factory.mktemp("forged")
    tables = {name: site.table for name, site in world(home).items()}
    own = {"threads": 1, "parts": {"train": "tests.security.test_drop_apart:forging_shop"}}
    roster = Roster(tuple(Party(name=name) for name in NAMES), "bank")
    flare.init(home / "fed", roster, port=free_port(), tables=tables, site=own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
        try:
            flare.start(home / "fed", 240.0)
            yield home / "fed"
        finally:
            flare.stop(home / "fed")


def train(house, extreme, **how):
    settings = house / f"{extreme}.toml"
    settings.write_text(tomli_w.dumps(TOML | {"train": TOML["train"] | {"extreme": extreme}}))
    return coordinator.train(house, settings, timeout_s=300, **how)


def test_the_others_go_on_without_it_or_the_run_ends(house):
    with pytest.warns(AnypartyWarning, match="party 'shop' took no part in 5 of 6 epochs .*saved model lacks its part"):
        train(house, "drop")
    record = read_json(house / "kits" / "bank" / "runs" / "record.json")
    assert record["status"] == "done"
    away = [epoch.get("absent", {}).get("shop", "") for epoch in record["history"]]
    assert not away[0]
    assert "message 'embedding' from 'shop' to 'bank' at stage 'train', epoch" in away[-1]
    assert ", the bound for messages of this party is" in away[-1]
    assert not any("back" in epoch for epoch in record["history"])
    with pytest.raises(RunError, match=r"ExtremeMessage.*message 'embedding' from 'shop' to 'bank' at stage 'train'"):
        train(house, "stop", again=True)
