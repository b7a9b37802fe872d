"""`anyparty check`, `anyparty settings` and `anyparty cite`."""

import pytest

from anyparty.config import Config
from anyparty.config.settings_reference import fields, groups, meaning
from anyparty.methods.citations import citations


def test_a_checked_file_passes_or_is_told_its_mistake(call, tmp_path, monkeypatch):
    (tmp_path / "tried_rules.py").write_text(
        "from torch import nn\n\n"
        "class Attention(nn.Module):\n"
        "    def __init__(self, K, H, C):\n"
        "        super().__init__()\n"
        "        self.query, self.out = nn.Linear(H, 1), nn.Linear(H, C)\n\n"
        "    def forward(self, h, observed):\n"
        "        scores = self.query(h).squeeze(2)\n"
        "        return self.out((scores.softmax(dim=1).unsqueeze(2) * h).sum(dim=1))\n\n"
        "class Masked(Attention):\n"
        "    def forward(self, h, observed):\n"
        "        scores = self.query(h).squeeze(2).masked_fill(~observed, -1e9)\n"
        "        return self.out((scores.softmax(dim=1).unsqueeze(2) * h).sum(dim=1))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    shown = call("check", "tried_rules:Masked", "anyparty.data.missingness:MNAR")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "tried_rules:Masked: this method passes all checks.",
        "anyparty.data.missingness:MNAR: this mechanism passes all checks.",
    ]
    failed = call("check", "tried_rules:Attention")
    assert failed.exit_code == 2
    assert "Attention, losses (tried_rules.py, line 8): the embedding of an absent party changes the losses" in (
        " ".join(failed.stderr.split())
    )


def test_settings_of_a_group(call):
    shown = call("settings", "optimizer")
    assert shown.exit_code == 0
    assert "strength of weight decay: an L2 penalty in SGD and Adam" in " ".join(shown.stdout.split())
    assert "[train]" not in shown.stdout
    assert "[train]" in call("settings").stdout
    wrong = call("settings", "optimiser")
    assert wrong.exit_code == 2
    assert "there is no group 'optimiser'; did you mean 'optimizer'" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(("name", "model"), list(groups(Config)), ids=lambda each: str(getattr(each, "__name__", each)))
def test_every_setting_has_a_meaning(name, model):
    assert [key for key, _, _ in fields(model) if not meaning(model, key)] == []


def test_cite_prints_bibtex(call):
    shown = call("cite", "laser", "apc")
    assert shown.exit_code == 0
    assert shown.stdout.strip() == "\n\n".join(citations(["laser", "apc"]).values())
