"""The page of an audit in a real browser: quiet, offline, and deaf to what model text would have it do."""

from pathlib import Path

import pytest
from tests.browser.chromium import Browser
from tests.report.audits import audit, unchanged

from kleash.report.drift.page import write_page

pytestmark = pytest.mark.browser


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return write_page(audit(), tmp_path / "drift.html")


def test_it_opens_without_a_complaint_and_asks_for_nothing(browser: Browser, made: Path) -> None:
    for dark in (False, True):
        page = browser.open(made, dark=dark)
        assert page.complaints() == []
        assert page.requests() == []
    bare = browser.open(write_page(unchanged(), made.with_name("bare.html")))
    assert bare.complaints() == [] and bare.requests() == []


def test_hostile_text_became_no_element(browser: Browser, made: Path) -> None:
    page = browser.open(made)
    assert page.evaluate("document.scripts.length") == 1
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.querySelectorAll('main *').length") > 300
    assert page.evaluate("document.body.innerText.includes('<script>alert(1)</script>')")


def test_what_is_pointed_at_says_its_numbers(browser: Browser, made: Path) -> None:
    page = browser.open(made)
    page.point_at(".forest .row")
    assert page.evaluate("document.getElementById('tip').textContent") == (
        "polite\n0.410 → 0.780\n+0.37 [+0.30, +0.44], gained"
    )
    page.point_at(".heat .flip")
    told = page.evaluate("document.getElementById('tip').textContent")
    assert told.startswith("KL ") and told.endswith("likeliest token changed")
    page.point_at("h1")
    assert page.evaluate("document.getElementById('tip').hidden")


def test_nothing_is_wider_than_the_window(browser: Browser, made: Path) -> None:
    for width in (1280, 390):
        page = browser.open(made, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_print_are_drawn_differently(browser: Browser, made: Path) -> None:
    page = browser.open(made)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.scheme("dark")
    dark = page.evaluate(ground)
    page.scheme("light", media="print")
    assert len({light, dark, page.evaluate(ground)}) == 3
    assert page.evaluate("getComputedStyle(document.getElementById('tip')).display") == "none"
