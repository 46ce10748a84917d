"""The command line from outside: what is wrong is one sentence and an exit code, and nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.training.small import settings, toml

import kleash
from kleash import cli

GOOD, FAILED, WRONG = 0, 2, 64
#: exit code, standard output, standard error
Found = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Found:
    """(exit code, standard output, standard error) of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["kleash", *map(str, arguments)])
    capsys.readouterr()
    code = 0
    try:
        cli.main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def kleash_(capsys, monkeypatch):
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def sentence(found: Found, code: int, *said: str) -> None:
    """It ended with this code and with one line that says all of this, and no traceback."""
    got, _, err = found
    assert got == code, found
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("kleash: ")]
    assert len(lines) == 1, err
    for words in said:
        assert words in lines[0]


#: Changes to a good config → exit code, what is said.
BAD_CONFIGS: dict[str, tuple[dict[str, Any], int, tuple[str, ...]]] = {
    "unknown key": ({"kl__taget": "4 nats/sequence"}, WRONG, ("unknown key 'kl.taget'", "did you mean 'target'?")),
    "no such model": ({"model__policy": "./nowhere"}, WRONG, ("there is no directory ./nowhere",)),
    "no such prompts": ({"data__prompts": "nowhere.txt"}, WRONG, ("there is no prompt file nowhere.txt",)),
    "beta without a penalty": ({"kl": {"penalty": "none", "beta": 0.1}}, WRONG, ("kl.penalty", '"exact"')),
    "k1 in the loss": (
        {"kl__penalty": {"kind": "in_loss", "estimator": "k1"}},
        WRONG,
        ("gradient of exactly zero", "in_reward"),
    ),
    "target without unit": ({"kl__target": "4"}, WRONG, ("no unit", '"4 nats/sequence"')),
    "group of one": ({"algorithm__group_size": 1}, WRONG, ("*other* completions", "at least 2")),
    "no such reward": ({"rewards": [{"use": "vadr"}]}, WRONG, ("'vadr'", "did you mean 'vader'")),
    "greedy": ({"train__temperature": 0}, WRONG, ("temperature must be above 0",)),
    "too many prompts a step": ({"train__prompts_per_step": 7}, WRONG, ("exceeds the 6 prompts",)),
    "base without an adapter": ({"model__reference": "base"}, WRONG, ("has none", '"start"')),
    "device": ({"model__device": "cuda:77"}, WRONG, ("not on this machine", '"auto"')),
    "prompt longer than the context": ({"train__max_new_tokens": 62}, WRONG, ("has 3 tokens", "shorten it")),
    "out is a file": ({"out": "/dev/null/run"}, WRONG, ("cannot be a run's directory",)),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_config_is_one_sentence(kleash_, tmp_path, name):
    changes, code, said = BAD_CONFIGS[name]
    found = kleash_("train", toml(tmp_path, **changes))
    sentence(found, code, *said)
    assert not (tmp_path / "run" / "events.jsonl").exists(), "nothing was started"


def test_a_missing_config(kleash_, tmp_path):
    sentence(kleash_("train", tmp_path / "run.toml"), WRONG, "there is no config file")


def test_an_empty_prompt(kleash_, tmp_path):
    path = toml(tmp_path, data__prompts=str(tmp_path / "p.jsonl"), train__prompts_per_step=2)
    (tmp_path / "p.jsonl").write_text('{"prompt": "t3"}\n{"prompt": "  "}\n')
    sentence(kleash_("train", path), WRONG, "prompt 1 is empty")


def test_a_tokenizer_without_an_end(kleash_, tmp_path):
    path = toml(tmp_path)
    build.tokenizer(eos=None).save_pretrained(tmp_path / "model")
    for name in ("config.json", "generation_config.json"):
        fields = json.loads((tmp_path / "model" / name).read_text())
        (tmp_path / "model" / name).write_text(json.dumps(fields | {"eos_token_id": None}))
    sentence(kleash_("train", path), WRONG, "no completion could end", "tokenizer_config.json")


def test_a_tokenizer_without_pad_is_no_fault(kleash_, tmp_path):
    path = toml(tmp_path, train__steps=1)
    assert build.tokenizer().pad_token_id is None
    code, _, err = kleash_("train", path)
    assert code == GOOD, err


def test_the_reward_of_a_user_goes_wrong(kleash_, tmp_path):
    for name, said in {
        "nothing": ("no sample of 12 has a score", "Return a number"),
        "nan": ("gave nan", "sample 0"),
        "short": ("returned 1 scores for 4",),
        "absent": ("there is no 'absent'", "it has"),
    }.items():
        path = toml(tmp_path, rewards=[{"use": f"{tmp_path / 'rewards.py'}:{name}"}], out=str(tmp_path / name))
        sentence(kleash_("train", path), WRONG if name == "absent" else FAILED, *said)


def test_what_a_reward_prints_is_no_part_of_the_json(kleash_, tmp_path):
    path = toml(tmp_path, rewards=[{"use": f"{tmp_path / 'loud.py'}:loud"}], train__steps=1)
    (tmp_path / "loud.py").write_text(
        "def loud(completions):\n    print('heard')\n    return [1.0] * len(completions)\n"
    )
    code, out, err = kleash_("train", path, "--json")
    assert code == GOOD, err
    assert json.loads(out)["score"] == 1.0
    assert "heard" in err


def test_a_reward_that_hangs(kleash_, tmp_path):
    path = toml(tmp_path, rewards=[{"use": f"{tmp_path / 'rewards.py'}:hangs", "timeout_s": 0.2}])
    sentence(kleash_("train", path), FAILED, "had not returned after 0.2 s", "timeout_s")


def test_a_reward_that_raises_in_the_third_step(kleash_, tmp_path):
    path = toml(tmp_path, rewards=[{"use": f"{tmp_path / 'rewards.py'}:fails_later"}], train__checkpoint_every=9)
    sentence(kleash_("train", path), FAILED, "raised ValueError: the judge is out")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000002"]


def test_a_full_disk(kleash_, tmp_path, monkeypatch):
    from kleash.training import checkpoint

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    path = toml(tmp_path)
    monkeypatch.setattr(checkpoint, "save_file", full)
    sentence(kleash_("train", path), FAILED, "could not be written", "No space left", "--resume")


def test_a_checkpoint_cut_short_is_passed_over(kleash_, tmp_path):
    path = toml(tmp_path)
    assert kleash_("train", path)[0] == GOOD
    weights = tmp_path / "run" / "checkpoints" / "step-000004" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    code, out, err = kleash_("train", path, "--resume")
    assert code == GOOD, err
    assert "step-000004 is not complete (model.safetensors has 100 of" in out
    assert "resuming at step 2" in out


def test_a_model_cut_short(kleash_, tmp_path):
    path = toml(tmp_path)
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    sentence(kleash_("train", path), FAILED, "cut short or damaged")


def test_resume_and_its_refusals(kleash_, tmp_path):
    path = toml(tmp_path, train__steps=1)
    sentence(kleash_("train", path, "--resume"), WRONG, "there is no run in")
    assert kleash_("train", path)[0] == GOOD
    sentence(kleash_("train", path), WRONG, "already holds a run", "--resume")
    looser = ("train", path, "kl.target=9 nats/sequence", "--resume")
    sentence(kleash_(*looser), WRONG, "would loosen the leash", "--loosen")
    assert kleash_(*looser, "--loosen")[0] == GOOD


@pytest.mark.parametrize(
    "arguments",
    [["--nonsense"], ["trian"], ["train"], ["train", "x.toml", "--fast"], ["train", "x.toml", "--seed", "a"]],
)
def test_a_command_line_that_is_wrong(kleash_, arguments):
    code, _, err = kleash_(*arguments)
    assert code == WRONG
    assert "Traceback" not in err


@pytest.mark.parametrize("override", ["kl.target", "kl.taget=1", "kl.target=4", "train.steps=many"])
def test_an_override_that_is_wrong(kleash_, tmp_path, override):
    sentence(kleash_("train", toml(tmp_path), override), WRONG)


def test_json_is_all_that_stands_on_standard_output(kleash_, tmp_path):
    path = toml(tmp_path, train__steps=1)
    code, out, _ = kleash_("train", path, "--check-only", "--json")
    assert (code, json.loads(out)) == (GOOD, {"checked": str(tmp_path / "run")})
    assert not (tmp_path / "run" / "events.jsonl").exists()
    code, out, _ = kleash_("train", path, "--json", "--seed", "3")
    told = json.loads(out)
    assert code == GOOD
    assert Path(told["run"]) == tmp_path / "run"
    assert Path(told["report"]).exists()
    assert told["score"] is not None
    assert told["kl_ref"] >= 0
    code, out, _ = kleash_("report", tmp_path / "run", "--json")
    assert (code, Path(json.loads(out)["report"]).name) == (GOOD, "report.html")


def test_seed_is_short_for_train_seed(kleash_, tmp_path, monkeypatch):
    from kleash.training import api

    seen = []
    monkeypatch.setattr(api, "start", lambda config, **options: seen.append(config.train.seed))
    for given in (["--seed", "5"], ["train.seed=6"], []):
        assert kleash_("train", toml(tmp_path), *given, "--check-only")[0] == GOOD
    assert seen == [5, 6, 0]


def test_a_report_of_nothing(kleash_, tmp_path):
    sentence(kleash_("report", tmp_path), FAILED, "has no training log that kleash knows")


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kleash", "train", str(tmp_path / "no.toml"), "--debug"])
    with pytest.raises(kleash.errors.UsageError):
        cli.main()


def test_version_and_help(kleash_):
    assert kleash_("--version")[:2] == (GOOD, f"kleash {kleash.__version__}\n")
    code, out, _ = kleash_("--help")
    assert code == GOOD
    for verb in ("train", "report", "demo"):
        assert verb in out
        assert kleash_(verb, "--help")[0] == GOOD


def test_help_loads_no_torch():
    """In a process of its own: what it imported is counted, not timed, so a busy machine changes nothing."""
    program = (
        "import sys; sys.argv = ['kleash', '--help']\n"
        "from kleash.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    assert not done.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic', 'datasets'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_before_the_first_step_says_how_to_start_again(kleash_, tmp_path, monkeypatch):
    from kleash.training import api

    def pressed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "build_job", pressed)
    path = toml(tmp_path)
    code, _, err = kleash_("train", path)
    assert code == 130
    assert "before the first step" in err
    assert "--resume" not in err


def test_the_environment_for_a_bug_report(kleash_, monkeypatch):
    monkeypatch.setenv("USER", "somebody")
    code, out, _ = kleash_("--version", "--verbose")
    assert code == GOOD
    facts = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert facts["kleash"] == kleash.__version__
    assert facts["torch"] == torch.__version__
    assert {"python", "transformers", "devices", "cores", "memory"} <= facts.keys()
    assert "somebody" not in out
    assert str(Path.home()) not in out


@pytest.mark.slow
def test_the_installed_command_keeps_its_streams_clean(tmp_path):
    """The real process: no progress bars or warnings of libraries, only kleash's own lines."""
    path = toml(tmp_path, train__steps=1, model__adapter={"rank": 2})
    done = subprocess.run(
        [sys.executable, "-m", "kleash.cli", "train", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == GOOD, done.stderr
    assert done.stderr == ""
    assert settings(tmp_path)["out"] in done.stdout
