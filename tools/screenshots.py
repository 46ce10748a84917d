"""Pictures of the committed pages, by headless Chromium: docs/images/*.webp, for the documentation.

python -m tools.screenshots        (make screenshots)
"""

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
WIDTH, HEIGHT, QUALITY = 1120, 760, 82


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser:
        for name, (source, begins, dark) in PICTURES.items():
            page = browser.open(ROOT / source, width=WIDTH, height=HEIGHT, dark=dark)
            page.evaluate(f"document.querySelector('{begins}').scrollIntoView()")
            path = page.screenshot(IMAGES / f"{name}.webp", form="webp", quality=QUALITY)
            print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
