"""The watched log's page in a real browser: hostile samples, clicks, and a log that grows while it is looked at."""

import time
from pathlib import Path

import pytest
from tests.browser.chromium import Browser, Page
from tests.report.logs import case, found, gamed, healthy, write_csv
from tests.report.test_serve import serving

from kleash.report.watch.page import write_page

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Page:
    return browser.open(write_page([found()], tmp_path / "watch.html"))


def text(page: Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({selector!r}).textContent")


def move(page: Page, name: str, value: int) -> None:
    page.evaluate(f"(e => {{ e.value = {value}; e.dispatchEvent(new Event('input', {{bubbles: true}})); }})({name})")


def test_it_is_quiet_and_asks_for_nothing(browser: Browser, tmp_path: Path) -> None:
    for cases in ([found()], [found(), case(healthy())], [case(healthy())]):
        for dark in (False, True):
            page = browser.open(write_page(cases, tmp_path / "watch.html"), dark=dark)
            assert page.complaints() == [] and page.requests() == []


def test_hostile_samples_became_no_element(page: Page) -> None:
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("[...document.scripts].filter(s => s.type !== 'application/json').length") == 1
    assert page.evaluate("document.getElementById('pairs').innerText.includes('<script>alert(1)</script>')")
    assert page.evaluate("document.querySelectorAll('#pairs b').length") == 0  # the prompts' <b>
    assert page.complaints() == []


def test_samples_of_two_steps_and_what_changed(page: Page) -> None:
    assert text(page, "#left-step") == "10" and text(page, "#right-step") == "300"
    assert page.evaluate("document.querySelectorAll('#pairs del').length") > 3
    assert page.evaluate("document.querySelectorAll('#pairs ins').length") > 3
    move(page, "right", 0)
    assert text(page, "#right-step") == "10"
    assert page.evaluate("document.querySelectorAll('#pairs ins, #pairs del').length") == 0
    move(page, "right", 5)
    page.evaluate("document.getElementById('diff').click()")
    assert page.evaluate("document.querySelectorAll('#pairs ins, #pairs del').length") == 0


def test_the_diff_joins_to_both_texts(page: Page) -> None:
    joined = page.evaluate(
        "(() => { const c = changes('the cat sat', 'a cat sat down');"
        "return [c.filter(([k]) => k <= 0), c.filter(([k]) => k >= 0)].map(p => p.map(([, w]) => w).join('')); })()"
    )
    assert joined == ["the cat sat", "a cat sat down"]


def test_a_click_copies_the_command(browser: Browser, page: Page) -> None:
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("document.querySelector('.checkpoints [data-copy]').click()")
    page.settle()
    assert page.evaluate("window.copied") == "kleash drift BASE outputs/checkpoint-150 outputs/checkpoint-200"
    assert text(page, ".checkpoints [data-copy] span") == "copied"
    page.evaluate("navigator.clipboard.writeText = async () => { throw new Error('no'); }")
    page.evaluate("document.querySelector('.told [data-copy]').click()")
    page.settle()
    assert page.evaluate("String(getSelection())") == "kleash drift BASE outputs/checkpoint-150 outputs/checkpoint-200"


def test_nothing_is_wider_than_the_window(browser: Browser, tmp_path: Path) -> None:
    path = write_page([found(), case(healthy())], tmp_path / "watch.html")
    for width in (1280, 390):
        page = browser.open(path, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_live_page_follows_its_log(browser: Browser, tmp_path: Path) -> None:
    log = gamed()
    path = write_csv(log, tmp_path / "run.csv", rows=100)
    with serving(path) as address:
        page = browser.open(address)
        assert "HEALTHY" in text(page, ".answer") and text(page, "#live") == "live"
        charts = page.evaluate("document.querySelectorAll('figure.chart').length")
        write_csv(log, tmp_path / "next.csv").replace(path)
        end = time.monotonic() + 15
        while "GAMING" not in text(page, ".answer") and time.monotonic() < end:
            page.settle()
        assert "GAMING" in text(page, ".answer") and "HEALTHY" not in text(page, "main")
        assert page.evaluate("document.querySelectorAll('figure.chart').length") == charts
        page.point_at("figure.chart svg")  # the new charts answer the pointer
        assert not page.evaluate("document.getElementById('tip').hidden")
        assert page.evaluate("document.querySelectorAll('svg path.mark').length") > 0
        assert page.complaints() == []
    end = time.monotonic() + 15
    while "ended" not in text(page, "#live") and time.monotonic() < end:
        page.settle()
    assert "the watch has ended" in text(page, "#live")
