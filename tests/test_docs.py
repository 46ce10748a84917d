"""The documentation is true: its links, commands, settings and snippets are held against the code."""

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tools import make_equations_doc
from typer.testing import CliRunner

import kleash
from kleash.algorithms import ALGORITHMS, GRPO, PPO, RLOO, Ptx, StepPenalty
from kleash.beta import CONTROLLERS
from kleash.beta.entropy import ENTROPY_LAWS
from kleash.cli import app
from kleash.kl.penalties import PENALTIES
from kleash.models.following import FOLLOWING
from kleash.models.spec import Adapter, ModelSpec
from kleash.rewards.judge import JudgeSpec
from kleash.rewards.shapes import SHAPES
from kleash.rewards.spec import RewardSpec
from kleash.rl.mismatch import Mismatch
from kleash.training.api import start
from kleash.training.config import Config, DataSpec
from kleash.training.kl_config import KLSpec
from kleash.training.log_config import LogSpec
from kleash.training.offline.dpo_config import DPOConfig, PairData, PairKL
from kleash.training.offline.reward_config import BradleyTerry, RewardConfig, RewardData
from kleash.training.offline.sft_config import SFTKL, SFTConfig, SFTData
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.token_weights import ClassWeights
from kleash.training.toml import load, load_config, parse
from kleash.training.train_config import TrainSpec
from kleash.training.watch_config import WatchSpec

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONFIG_PAGE = (ROOT / "docs" / "config.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

#: The config of each verb that has one.
CONFIGS: dict[str, type] = {"train": Config, "sft": SFTConfig, "dpo": DPOConfig, "reward": RewardConfig}
#: What a snippet that shows only some sections is completed with.
MINIMAL = {
    "out": "runs/x",
    "model": {"policy": "kleash:tiny"},
    "data": {"prompts": "p.jsonl"},
    "rewards": [{"use": "vader"}],
}


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language ("" for none), without their fences."""
    parts = re.split(r"^```(.*)\n", text + "\n", flags=re.M)  # prose, language, body, "", prose, …
    return [body for opened, body in zip(parts[1::4], parts[2::4], strict=False) if opened == language]


def block(language: str, containing: str) -> str:
    (found,) = [text for text in blocks(README, language) if containing in text]
    return found


# ── links and commands ──────────────────────────────────────────────────────────────────────────────────


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not target.startswith(("http:", "https:", "#")):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name} links to {target}"


@each_page
def test_code_in_prose_names_real_files_and_tests(page: Path) -> None:
    for name in re.findall(r"`((?:docs|tests|recipes|examples|tools|benchmarks)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@each_page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z][a-z0-9-]+)\b(?=[`\s]*(?:$|[`)#.,:;]|[A-Z]+=))", page.read_text(), re.M):
        program = ROOT / "benchmarks" / f"{target.removeprefix('bench-').replace('-', '_')}.py"  # the rule bench-%
        named = re.search(rf"^[^\t#\n]*\b{target}\b[^\n=]*:", makefile, re.M)
        assert named or (target.startswith("bench-") and program.exists()), f"{page.name}: make {target}"


def verbs() -> set[str]:
    return {str(command.name or command.callback.__name__) for command in app.registered_commands if command.callback}


def test_readme_lists_the_verbs_that_work() -> None:
    assert set(re.findall(r"^\| `kleash (\w+)` \|", README, re.M)) == verbs()
    shown = CliRunner().invoke(app, ["--help"], env={"TERM": "dumb", "COLUMNS": "200"}).output
    assert all(verb in shown for verb in verbs())


@each_page
def test_no_page_promises_another_verb(page: Path) -> None:
    commands = "\n".join(blocks(page.read_text(), ""))
    shown = re.findall(r"^(?:\$ )?kleash ([a-z]+)\b", commands, re.M)
    shown += re.findall(r"`kleash ([a-z]+)\b", page.read_text())
    assert set(shown) <= verbs()


def test_exit_codes_page_has_every_verb() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    assert set(re.findall(r"^\| `kleash (\w+)` \|", page, re.M)) == verbs()


def test_the_site_has_every_page() -> None:
    listed = set(re.findall(r"([\w./-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────


@each_page
def test_toml_snippets_are_configs(page: Path) -> None:
    for text in blocks(page.read_text(), "toml"):
        verb = verb_of(text)
        parse((MINIMAL if verb == "train" else {}) | tomllib.loads(text), CONFIGS[verb])


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.toml")), ids=lambda path: path.name)
def test_recipes_are_configs(path: Path) -> None:
    load(path, [], CONFIGS[verb_of(path.read_text())])
    for named in tomllib.loads(path.read_text())["data"].values():
        if str(named).startswith("recipes/"):
            assert (ROOT / named).exists()


def verb_of(text: str) -> str:
    """Which verb a config is for: that of the first command in its comments; `train` where none is named."""
    named = re.search(r"^#.*\bkleash (\w+)", text, re.M)
    return named[1] if named else "train"


@pytest.mark.parametrize("name", ["ziegler2019", "instructgpt"])
def test_published_recipes_are_short(name: str) -> None:
    assert len((ROOT / "recipes" / f"{name}.toml").read_text().splitlines()) < 25


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_ppo", "ziegler2019", "instructgpt"])
def test_recipes_of_ppo_run(name: str, tmp_path: Path) -> None:
    """As they are, but for what one does not have here: their model, data and reward, and their sizes."""
    (tmp_path / "prompts.txt").write_text("The soup\nMy phone\nThe hotel\nWe took the train\n" * 2)
    (tmp_path / "texts.txt").write_text("The soup was warm.\nThe hotel is old and quiet.\n")
    given = [
        f"out={tmp_path / 'run'}",
        "model.policy=kleash:tiny",
        f"data.prompts={tmp_path / 'prompts.txt'}",
        "rewards.0.use=vader",
        "train.steps=1",
        "train.prompts_per_step=8",
        "train.max_new_tokens=8",
    ]
    if name == "instructgpt":
        given += [f"algorithm.ptx.texts={tmp_path / 'texts.txt'}", "algorithm.ptx.per_update=2"]
    run = start(load_config(ROOT / "recipes" / f"{name}.toml", given))
    assert run.finished
    assert run.steps[0].value_loss is not None
    assert (run.steps[0].ptx_loss is not None) == (name == "instructgpt")


def documented(heading: str, page: str = CONFIG_PAGE) -> dict[str, str]:
    """key → default of the table below a heading of config.md; the page's `–` is None."""
    section = page.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.M))


def defaults(*specs: type, without: tuple[str, ...] = ("kind",)) -> dict[str, str]:
    found = {}
    for field in (field for spec in specs for field in dataclasses.fields(spec) if field.name not in without):
        if field.default is not dataclasses.MISSING:
            found[field.name] = shown(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = shown(field.default_factory())
        else:
            found[field.name] = "needed"
    return found


def shown(value: object) -> str:
    if value is None:
        return "–"
    kind = getattr(value, "kind", None)
    plain = list(value) if isinstance(value, tuple) else value if kind is None else kind
    if dataclasses.is_dataclass(plain) and not isinstance(plain, type):
        plain = dataclasses.asdict(plain)
    return f"`{json.dumps(plain)}`"


@pytest.mark.parametrize(
    ("heading", "spec"),
    [
        ("## [model]", ModelSpec),
        ("### [model.adapter]", Adapter),
        ("## [data]", DataSpec),
        ("## [[rewards]]", RewardSpec),
        ("### algorithm.step_penalty", StepPenalty),
        ("### algorithm.ptx", Ptx),
        ("## [kl]", KLSpec),
        ("### kl.weights", ClassWeights),
        ("## [train]", TrainSpec),
        ("### train.mismatch", Mismatch),
        ("## [watch]", WatchSpec),
        ("## [log]", LogSpec),
    ],
)
def test_config_page_has_every_key_and_default(heading: str, spec: type) -> None:
    assert documented(heading) == defaults(spec)


@pytest.mark.parametrize(
    ("page", "heading", "spec"),
    [
        ("dpo.md", "### [data] of dpo", PairData),
        ("dpo.md", "### [kl] of dpo", PairKL),
        ("sft.md", "### [data] of sft", SFTData),
        ("sft.md", "### [kl] of sft", SFTKL),
        ("sft.md", "### [train] of sft, dpo and reward", OfflineTrain),
        ("reward-models.md", "### [data] of reward", RewardData),
        ("reward-models.md", "### [loss] of reward", BradleyTerry),
        ("judge.md", "## All settings", JudgeSpec),
    ],
)
def test_a_page_of_a_verb_has_every_key_and_default(page: str, heading: str, spec: type) -> None:
    assert documented(heading, (ROOT / "docs" / page).read_text()) == defaults(spec)


def test_config_page_has_every_key_of_the_algorithms() -> None:
    listed = documented("## [algorithm]")
    assert listed == defaults(RLOO) | defaults(GRPO)
    assert documented("### PPO") == defaults(PPO)
    section = CONFIG_PAGE.split("\n### The variants' own defaults\n", 1)[1].split("\n#", 1)[0]
    own = {(kind, key): d for kind, key, d in re.findall(r"^\| `([\w+]+)` \| `(\w+)` \| (.+?) \|", section, re.M)}
    variants = {kind: spec for kind, spec in ALGORITHMS.items() if spec not in (GRPO, RLOO, PPO)}
    assert own == {
        (kind, key): default
        for kind, spec in variants.items()
        for key, default in defaults(spec).items()
        if listed.get(key) != default
    }
    assert all(f'`"{kind}"`' in CONFIG_PAGE or f'`kind = "{kind}"`' in CONFIG_PAGE for kind in ALGORITHMS)


@pytest.mark.parametrize(
    ("heading", "members"),
    [
        ("### rewards.shape", SHAPES),
        ("### kl.penalty", PENALTIES),
        ("### kl.controller", CONTROLLERS),
        ("## [entropy]", ENTROPY_LAWS),
        ("### model.reference_update", FOLLOWING),
    ],
)
def test_config_page_has_every_key_of_each_kind(heading: str, members: dict[str, type]) -> None:
    section = CONFIG_PAGE.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+?) \|", section, re.M)
    listed = {(kind, key): default for kind, key, default in rows}
    assert listed == {(kind, key): d for kind, spec in members.items() for key, d in defaults(spec).items()}
    assert all(f'`"{kind}"`' in CONFIG_PAGE for kind in members)


def test_config_page_has_every_section() -> None:
    sections = {field.name for field in dataclasses.fields(Config)} - {"out"}
    assert set(re.findall(r"^## \[+(\w+)\]+$", CONFIG_PAGE, re.M)) == sections


API_PAGE = (ROOT / "docs" / "api.md").read_text()
MEMBERS = re.findall(r"^::: ([\w.]+)\n    options:\n      members: \[(.*)\]", API_PAGE, re.M)


def test_each_algorithm_has_its_kl_a_recipe_and_runs() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    sections = {part.split()[0].strip(","): " ".join(part.split()) for part in re.split(r"^## ", page, flags=re.M)[1:]}
    for kind in ALGORITHMS:
        for part in ("**KL**", "nats per sequence", "recipes/tiny_", "(runs/"):
            assert part in sections[kind], f"{kind}: {part}"


def test_the_reference_has_every_name_of_the_package() -> None:
    listed = set(re.findall(r"^::: ([\w.]+)", API_PAGE, re.M))
    listed |= {f"{module}.{name}" for module, names in MEMBERS for name in names.split(", ")}
    for name in set(kleash.__all__) - {"__version__"}:
        there = getattr(kleash, name)
        assert f"{there.__module__}.{there.__name__}" in listed, name


# ── made pages and snippets ─────────────────────────────────────────────────────────────────────────────


def test_equations_page_is_current() -> None:
    assert make_equations_doc.PAGE.read_text() == make_equations_doc.render(), "run: make docs"


@each_page
def test_python_snippets_are_python(page: Path) -> None:
    for text in blocks(page.read_text(), "python"):
        compile(text, page.name, "exec")


def test_readme_snippet_of_kl_and_beta_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python", "from kleash.beta import PI"), "README.md", "exec"), {})
    value, error, beta = map(float, capsys.readouterr().out.split())
    assert value > 0
    assert error > 0
    assert beta != 0.05


def in_fresh_python(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lay_out_readme(folder: Path) -> None:
    """The three files of the README's own-model example."""
    (folder / "reward.py").write_text(block("python", "def polite"))
    (folder / "prompts.jsonl").write_text(block("json", '"prompt"'))
    (folder / "run.toml").write_text(block("toml", "[train]"))


@pytest.mark.slow
def test_readme_example_runs_from_toml(tmp_path: Path) -> None:
    lay_out_readme(tmp_path)
    small = ["model.policy=kleash:tiny", "train.steps=2", "train.max_new_tokens=8", "algorithm.group_size=4"]
    for more in (["--check-only"], [], ["--resume", "train.steps=3"]):
        command = [sys.executable, "-m", "kleash.cli", "train", "run.toml", *small, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
    assert (tmp_path / "runs" / "polite" / "report.html").exists()


@pytest.mark.slow
def test_readme_example_runs_from_python(tmp_path: Path) -> None:
    lay_out_readme(tmp_path)
    program = block("python", "kleash.train(").replace('"./my-model"', '"kleash:tiny"')
    program = program.replace('"train.steps": 100', '"train.steps": 2').replace('_tokens": 64', '_tokens": 8')
    in_fresh_python(program, tmp_path)
    assert (tmp_path / "polite-model" / "config.json").exists()


@pytest.mark.slow
def test_torch_loop_runs_without_the_trainer(tmp_path: Path) -> None:
    out = in_fresh_python(
        f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r})\n"
        "import torch_loop\n"
        "torch_loop.main(steps=3)\n"
        "assert not any(name.startswith('kleash.training') for name in sys.modules)\n",
        tmp_path,
    )
    readings = [float(found) for found in re.findall(r"KL +(\d+\.\d+)", out)]
    assert readings[0] == 0
    assert readings[-1] > 0
