"""The architecture page names files that exist, and packages in the order of their imports."""

import re

from tests.docs.pages import ROOT, text

PAGE = text("explanation/architecture.md")
SOURCE = ROOT / "src" / "anyparty"

PATHS = sorted(set(re.findall(r"`(?:src/anyparty/)?([a-z_]+(?:/[\w.]+)*(?:\.py|/))`", PAGE)) - {"src/anyparty/"})


def test_it_names_files_for_many_tasks() -> None:
    tasks = re.findall(r"^\| ([^|]+) \| `[\w/.]+`", PAGE.partition("## To change something")[2], flags=re.MULTILINE)
    assert len(tasks) >= 15
    assert len(PATHS) > 30


def test_its_paths_exist() -> None:
    assert [path for path in PATHS if not (SOURCE / path).exists()] == []


def test_it_lists_every_package() -> None:
    listed = re.findall(r"^\| `(\w+)/` \|", PAGE, flags=re.MULTILINE)
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(listed)
