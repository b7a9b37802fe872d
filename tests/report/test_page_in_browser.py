"""In a headless Chromium, pages fit each width, follow the colour scheme, print, and pass the check of axe-core."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread
from tools import browser

from anyparty.report import page, party_set_scores
from tests.report import trained_runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.chromium() is None, reason="there is no headless Chromium (chromium or google-chrome)"),
]
SCREEN = 900  # pixels
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Write a page of one run with its model, one from the record only, and one of six runs."""
    folder = tmp_path_factory.mktemp("pages")
    settings = trained_runs.write(folder / "six", trained_runs.FIVE, kind="four")
    made = [
        trained_runs.train(settings, f"{name}-{seed}", f"method.name={name}", f"train.seed={seed}", "train.epochs=2")
        for name in ("laser", "local", "ensemble")
        for seed in (0, 1)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_set_scores, "RESAMPLES", 5)
        return {
            "one": page.write(made[0], folder / "one.html", model=True),
            "record": page.write(made[0], folder / "record.html", model=False),
            "six": page.write(made, folder / "six.html", model=True),
        }


@pytest.mark.parametrize("width", browser.WIDTHS)
@pytest.mark.parametrize("which", ["one", "record", "six"])
def test_a_page_fits_its_window(pages, which, width):
    opened = "document.querySelectorAll('details').forEach(each => { each.open = true });"
    assert browser.evaluate(pages[which], opened + OVERFLOW, width=width) <= 0


def test_six_runs_take_three_screens(pages):
    assert browser.height_of(pages["six"], 1400) <= 3 * SCREEN


@pytest.mark.parametrize("scheme", browser.SCHEMES)
def test_a_page_follows_the_colour_scheme(pages, tmp_path, scheme):
    browser.screenshot(pages["one"], tmp_path / "page.png", scheme=scheme)
    seen = imread(tmp_path / "page.png")[..., :3]
    assert (seen.mean() > 0.9) if scheme == "light" else (seen.mean() < 0.2)
    assert seen.std() > 0.05


def test_a_page_prints_its_details_too(pages, tmp_path):
    browser.printed(pages["one"], tmp_path / "page.pdf")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    browser.printed(pages["record"], tmp_path / "record.pdf")
    assert pdf.count(b"/Type /Page\n") > (tmp_path / "record.pdf").read_bytes().count(b"/Type /Page\n") > 1


@pytest.mark.skipif(browser.axe_core() is None, reason="axe-core is not here: npm install axe-core, or set AXE_CORE")
@pytest.mark.parametrize("scheme", browser.SCHEMES)
@pytest.mark.parametrize("which", ["one", "six"])
def test_axe_core_has_no_serious_finding(pages, which, scheme):
    assert browser.accessibility(pages[which], scheme=scheme) == []
    assert browser.accessibility(pages[which], scheme=scheme, width=360) == []
