"""The architecture page names files that exist, and packages in the order of their imports."""

import re

import pytest

from tests.docs.pages import ROOT, text

PAGE = text("explanation/architecture.md")
SOURCE = ROOT / "src" / "anyparty"

# Names before the packages move. Delete this table with the move; every path must exist then.
OLD = {
    "alignment/private/protocol.py": "align/private.py",
    "api/federation.py": "run/federation.py",
    "artifacts/record.py": "run/record.py",
    "cli/doctor/machine.py": "doctor/machine.py",
    "config/schema.py": "config/groups.py",
    "data/datasets/public.py": "tables/datasets/tabular.py",
    "data/missingness/missingness.py": "blocks/missing/drawn.py",
    "deployment/flare/launcher.py": "wire/flare/launch.py",
    "deployment/flare/provisioning.py": "wire/flare/kits.py",
    "deployment/site/policy.py": "run/allowed.py",
    "experiments/suites/": "bench/suites/",
    "methods/method.py": "methods/method.py",
    "methods/method_registry.py": "methods/table.py",
    "methods/schedules/schedule.py": "schedules/schedule.py",
    "methods/split/base.py": "methods/split.py",
    "methods/split/laser.py": "methods/laser.py",
    "methods/split/rule.py": "methods/fusion.py",
    "metrics/metrics.py": "metrics/scores.py",
    "networks/encoders.py": "nets/mlp.py",
    "networks/heads.py": "nets/stacked.py",
    "networks/losses.py": "nets/objective.py",
    "serving/http_app.py": "serve/app.py",
    "tables/column_types.py": "tables/kinds.py",
    "tables/preprocessing.py": "tables/prepare.py",
    "tables/readers.py": "tables/sources.py",
    "training/checkpoint.py": "run/checkpoint.py",
    "training/epoch_end.py": "run/verdict.py",
    "training/loop.py": "run/train.py",
    "training/membership.py": "run/door.py",
    "transport/bounds.py": "wire/bounds.py",
    "transport/codec.py": "wire/message.py",
    "transport/contract.py": "wire/guard.py",
    "transport/memory.py": "wire/inproc.py",
    "alignment/": "align/", "api/": "run/", "artifacts/": "run/", "core/": "", "data/": "blocks/",
    "deployment/": "wire/", "experiments/": "bench/", "networks/": "nets/", "serving/": "serve/", "training/": "run/",
    "transport/": "wire/",
}  # fmt: skip
PATHS = sorted(set(re.findall(r"`(?:src/anyparty/)?([a-z_]+(?:/[\w.]+)*(?:\.py|/))`", PAGE)) - {"src/anyparty/"})


def test_it_names_files_for_many_tasks() -> None:
    tasks = re.findall(r"^\| ([^|]+) \| `[\w/.]+`", PAGE.partition("## To change something")[2], flags=re.MULTILINE)
    assert len(tasks) >= 15
    assert len(PATHS) > 30


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path: str) -> None:
    assert (SOURCE / path).exists() or (path in OLD and (SOURCE / OLD[path]).exists())


def test_it_lists_every_package() -> None:
    listed = re.findall(r"^\| `(\w+)/` \|", PAGE, flags=re.MULTILINE)
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    before = {old.partition("/")[0] for old in OLD.values()} | {"cli", "demo", "doctor", "methods", "schedules"}
    assert folders - before <= set(listed)
    assert len(listed) == 17
