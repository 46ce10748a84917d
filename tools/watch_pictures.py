"""The pictures of docs/watch.md, from the tests' invented log: `python -m tools.watch_pictures` (needs Chromium)."""

import tempfile
from pathlib import Path

from tests.browser.chromium import Browser
from tests.report.logs import found

from kleash.report.watch.page import write_page

WHERE = Path(__file__).parents[1] / "docs" / "images"
#: Name → what to scroll to.
PICTURES = {"watch-charts": ".charts", "watch-samples": "#browser"}


def main() -> None:
    WHERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        page = browser.open(write_page([found()], Path(folder) / "page.html"), width=1180, height=620)
        for name, selector in PICTURES.items():
            page.evaluate(f"document.querySelector('{selector}').scrollIntoView()")
            print(page.screenshot(WHERE / f"{name}.webp", form="webp", quality=70))


if __name__ == "__main__":
    main()
