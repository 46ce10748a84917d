"""Writes the table of traps in docs/check.md: python tools/make_check_doc.py"""

import re
from pathlib import Path

from kleash.check.traps import TRAPS

PAGE = Path(__file__).parents[1] / "docs" / "check.md"


def table() -> str:
    lines = ["| trap | severity | libraries | what happens | what to do | seen in |", "|" + "---|" * 6]
    for name, trap in TRAPS.items():
        cells = [f"`{name}`", trap.severity, trap.libraries, trap.what, trap.do, trap.source]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def render(page: str) -> str:
    """The page with the table as it is now."""
    begin, end = "<!-- table: traps -->", "<!-- end of table: traps -->"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table()}\n{end}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
