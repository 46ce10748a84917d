"""Pictures of the committed pages and of the notebook's outputs, by headless Chromium: docs/images/*.webp.

python -m tools.screenshots        (make screenshots)
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.browser.chromium import Browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
#: Picture → the page, the selector it begins at, whether it is dark.
PICTURES = {
    "drift-answer": ("docs/examples/drift-narrow/drift.html", "header", False),
    "drift-words": ("docs/examples/drift-narrow/drift.html", "#words", False),
    "drift-dark": ("docs/examples/drift-hacked/drift.html", "header", True),
}
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
#: Picture → a word of the notebook's output that it shows, and how much of it is shown.
VIEWS = {
    "notebook-run": ("The leash held", 1235),
    "notebook-watch": ("GAMING", 640),
    "notebook-drift": ("off task", 480),
}
WIDTH, HEIGHT, QUALITY = 1120, 760, 82


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        for name, (word, height) in VIEWS.items():
            view = Path(folder) / f"{name}.html"
            view.write_text("<!doctype html><meta charset=utf-8>" + next(html for html in outputs() if word in html))
            path = browser.open(view, width=960, height=height).screenshot(IMAGES / f"{name}.webp", form="webp")
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")
        for name, (source, begins, dark) in PICTURES.items():
            page = browser.open(ROOT / source, width=WIDTH, height=HEIGHT, dark=dark)
            page.evaluate(f"document.querySelector('{begins}').scrollIntoView()")
            path = page.screenshot(IMAGES / f"{name}.webp", form="webp", quality=QUALITY)
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


def outputs() -> Iterator[str]:
    """The notebook's pieces of HTML, in their order."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                yield "".join(output["data"]["text/html"])


if __name__ == "__main__":
    main()
