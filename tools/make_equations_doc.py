"""Writes docs/equations.md from the Source and Proved by lines of docstrings: python tools/make_equations_doc.py"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "equations.md"
FOLDERS = ("kl", "rl", "beta", "algorithms")

HEAD = """# From paper to test

<!-- Made from docstrings in kl, rl, beta and algorithms by tools/make_equations_doc.py: edit those, not this page. -->

Each row is one function: what it computes, where that comes from, and the test that proves it against enumeration, a
closed form, or a slow loop written from the paper. `python -m pytest TEST` runs one.
"""


class Row(NamedTuple):
    """One function or law: where it is, what it says it computes, its source and its proofs."""

    function: str
    file: str
    says: str
    source: str
    proofs: list[str]


def rows(folder: str) -> list[Row]:
    """All definitions of a folder whose docstring has a Source and a proof, in the order of the files."""
    found = []
    for path in sorted((ROOT / "src" / "kleash" / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for owner, node in _definitions(tree):
            row = _row(path, owner, node)
            if row is not None:
                found.append(row)
    return found


def _definitions(tree: ast.Module) -> list[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    found: list[tuple[str, ast.FunctionDef | ast.ClassDef]] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(("", node))
        if isinstance(node, ast.ClassDef):
            found += [(node.name, child) for child in node.body if isinstance(child, ast.FunctionDef)]
    return found


def _row(path: Path, owner: str, node: ast.FunctionDef | ast.ClassDef) -> Row | None:
    text = ast.get_docstring(node) or ""
    source = re.search(r"^Source: (.+?)(?=\n\S+[^\n]*:|\n\n|\Z)", text, re.M | re.S)
    proofs = re.findall(r"tests/[\w/]+\.py::\w+", text)
    if source is None or not proofs:
        return None
    name = f"{owner}.{node.name}" if owner else node.name
    return Row(name, path.relative_to(ROOT).as_posix(), text.splitlines()[0], " ".join(source[1].split()), proofs)


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for folder in FOLDERS:
        parts.append(f"\n## {folder}\n\n| source | what it computes | function | proved by |\n|---|---|---|---|\n")
        for row in rows(folder):
            tests = "<br>".join(_link(proof) for proof in row.proofs)
            parts.append(f"| {_cell(row.source)} | {_cell(row.says)} | [`{row.function}`](../{row.file}) | {tests} |\n")
    return "".join(parts)


def _link(proof: str) -> str:
    file, test = proof.split("::")
    return f"[`{test}`](../{file})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
