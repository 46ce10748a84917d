"""The rules of the house that a machine can hold: sizes, sources, proofs, tolerances, no silent bounds."""

import ast
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "kleash"
LONGEST_FILE = 300
LONGEST_FUNCTION = 50
MOST_PARAMETERS = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


OWN = python_files("src")
SHIPPED = python_files("src", "tools", "examples", "benchmarks")
each_shipped = pytest.mark.parametrize("path", SHIPPED, ids=name_of)
each_source = pytest.mark.parametrize("path", OWN, ids=name_of)
each_test = pytest.mark.parametrize("path", python_files("tests"), ids=name_of)


# ── sizes ───────────────────────────────────────────────────────────────────────────────────────────────


@each_shipped
def test_a_file_is_one_subject(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@each_shipped
def test_a_function_is_one_thought(path: Path) -> None:
    """Lines from `def` to the last statement, the docstring aside: words that explain are not the thought."""
    for function in functions(parsed(path)):
        lines = (function.end_lineno or 0) - function.lineno + 1 - docstring_lines(function)
        assert lines <= LONGEST_FUNCTION, f"{function.name} has {lines} lines"


def docstring_lines(function: Function) -> int:
    if ast.get_docstring(function) is None:
        return 0
    return (function.body[0].end_lineno or 0) - function.body[0].lineno + 1


# ── sources and proofs ──────────────────────────────────────────────────────────────────────────────────


def provable() -> list[tuple[Path, str, str]]:
    """(file, name, docstring) of all that claims to be mathematics.

    Public functions of kl, rl, beta, algorithms, and the controllers (classes of beta with an `update`).
    """
    found = []
    for folder in ("kl", "rl", "beta", "algorithms"):
        for path in sorted((SRC / folder).rglob("*.py")):
            for node in parsed(path).body:
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        claims = not name.startswith("_")
                    case ast.ClassDef(name=name):
                        claims = folder == "beta" and has_update(node)
                    case _:
                        continue
                if claims:
                    found.append((path, name, ast.get_docstring(node) or ""))
    return found


def has_update(node: ast.ClassDef) -> bool:
    return any(isinstance(child, Function) and child.name == "update" for child in node.body)


@cache
def names_in(path: Path) -> set[str]:
    return {function.name for function in functions(parsed(path))} if path.is_file() else set()


@pytest.mark.parametrize(
    ("path", "name", "docstring"),
    provable(),
    ids=[f"{name_of(path)}::{name}" for path, name, _ in provable()],
)
def test_mathematics_names_its_source_and_its_proof(path: Path, name: str, docstring: str) -> None:
    assert re.search(r"^\s*Source: \S", docstring, re.M), f"{name} has no line `Source: …`"
    assert re.search(r"^\s*Proved by: \S", docstring, re.M), f"{name} has no line `Proved by: …`"
    proofs = re.findall(r"(tests/[\w/]+\.py)::(\w+)", docstring)
    assert proofs, f"the proof of {name} names no test"
    for file, test in proofs:
        assert test in names_in(ROOT / file), f"{name} is proved by {file}::{test}, which does not exist"


@each_source
def test_every_named_proof_exists(path: Path) -> None:
    """Also where no proof is asked for: a docstring that names a test names a real one."""
    for file, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", path.read_text()):
        assert test in names_in(ROOT / file), f"{file}::{test} does not exist"


# ── tolerances ──────────────────────────────────────────────────────────────────────────────────────────


def literal_tolerances(tree: ast.Module) -> Iterator[int]:
    """Lines where a tolerance is a number (0 aside) instead of a name from tests/tolerances.py."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [word.value for word in call.keywords if word.arg in ("rtol", "atol", "rel_tol", "abs_tol")]
        if callee(call) == "approx":
            given += [word.value for word in call.keywords if word.arg in ("rel", "abs")] + call.args[1:]
        for value in given:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and node.value != 0:
                    yield call.lineno


def callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


@each_test
def test_a_tolerance_has_a_name(path: Path) -> None:
    assert list(literal_tolerances(parsed(path))) == []


def test_literal_tolerances_are_seen() -> None:
    seen = literal_tolerances(
        ast.parse(
            "assert_close(a, b, rtol=1e6, atol=0)\n"
            "assert a == approx(b, rel=EXACT)\n"
            "assert a == approx(b, abs=EXACT * 10)\n"
            "assert a == approx(b, 1e-3)\n"
        )
    )
    assert list(seen) == [1, 3, 4]


# ── safety and honesty ──────────────────────────────────────────────────────────────────────────────────


@each_shipped
def test_nothing_that_runs_what_it_reads(path: Path) -> None:
    """No pickle, no torch.load; trust_remote_code is on only where the user asks for it."""
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import(names=names):
                assert not any(alias.name.split(".")[0] in ("pickle", "dill", "joblib") for alias in names)
            case ast.ImportFrom(module=module):
                assert module not in ("pickle", "dill", "joblib")
            case ast.Attribute(value=ast.Name(id="torch"), attr=attribute):
                assert attribute not in ("load", "save"), "use safetensors"
            case ast.keyword(arg="trust_remote_code" | "allow_pickle", value=value):
                assert not (isinstance(value, ast.Constant) and value.value is True)


@cache
def code_and_comments(path: Path) -> dict[int, tuple[str, str]]:
    """Line → (its code without strings and comments, its comment)."""
    lines: dict[int, tuple[str, str]] = {}
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            code, comment = lines.get(token.start[0], ("", ""))
            if token.type == tokenize.COMMENT:
                comment = token.string
            elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
                code += token.string + (" " if token.string in ("def", "class") else "")
            lines[token.start[0]] = (code, comment)
    return lines


@pytest.mark.parametrize("path", python_files("src/kleash/kl", "src/kleash/beta"), ids=name_of)
def test_no_silent_bound(path: Path) -> None:
    """A clamp in kl/ or beta/ says, on its line, where it is counted (`# counted in …`)."""
    for number, (code, comment) in code_and_comments(path).items():
        if re.search(r"(?<!def )\b(clamp|clip|clamp_min|clamp_max|clamp_|nan_to_num)\(", code):
            assert "count" in comment, f"line {number} bounds a value and does not say where that is counted"


@each_shipped
def test_nothing_left_to_do(path: Path) -> None:
    for number, (_, comment) in code_and_comments(path).items():
        assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", comment), f"line {number}"


@each_shipped
def test_few_parameters(path: Path) -> None:
    """But for the verbs of the command line, whose parameters are their options."""
    for function in functions(parsed(path)):
        if path.parent.name == "cli" and function.name == path.stem:
            continue
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls", "ctx")])
        assert count <= MOST_PARAMETERS, f"{function.name} takes {count}"


@each_source
def test_no_inheritance_of_implementation(path: Path) -> None:
    """A kleash class inherits only from errors and what a library asks for (nn.Module, Protocol)."""
    own = {node.name for other in OWN for node in classes(other)}
    for node in classes(path):
        parents = {base.id for base in node.bases if isinstance(base, ast.Name)} & own
        assert all(parent.endswith("Error") for parent in parents), f"{node.name} inherits from {parents}"


@cache
def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef)]
