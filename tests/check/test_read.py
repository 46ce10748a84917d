"""Files as people have them, and those that cannot be read."""

import json
import math
from pathlib import Path

import pytest
from tests.tolerances import LOOP
from tools.make_check_doc import PAGE, render
from typer.testing import CliRunner

from kleash.algorithms import ALGORITHMS
from kleash.check import check
from kleash.check.libraries.kleash import DEFAULT_BETA, DEFAULT_BETA_IN_DEVIATIONS, DEFAULT_TARGET
from kleash.check.libraries.shared import steps_to_tenfold
from kleash.check.traps import TRAPS
from kleash.check.words import failed, text, told
from kleash.errors import UsageError
from kleash.training import kl_config
from kleash.training.toml import load_config

SCRIPT = """
from trl import GRPOConfig, GRPOTrainer
common = dict(output_dir="out", max_completion_length=200)
strength = 4e-2
args = GRPOConfig(beta=strength, **common)
GRPOTrainer(model="org/model", args=args, reward_funcs=[reward], train_dataset=data)
"""
VERL = """
algorithm: {adv_estimator: gae, use_kl_in_reward: true, kl_ctrl: {type: fixed, kl_coef: 1e-3}}
data: {max_response_length: 1024, train_batch_size: 256}
actor_rollout_ref: {actor: {use_kl_loss: false}, rollout: {n: 1}}
"""


def test_names_and_shared_settings_of_a_script_are_followed(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    (one,) = check(tmp_path / "run.py")
    assert one.charges[0].beta == 0.04 and one.length == 200 and one.given.place.endswith("run.py:5")


def test_several_runs_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("a = DPOConfig(beta=0.2)\nb = RLOOConfig()\n")
    assert [one.given.method for one in check(tmp_path / "run.py")] == ["dpo", "rloo"]


def test_the_version_decides_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("GRPOTrainer('org/model', reward_funcs=f)")
    assert check(tmp_path / "run.py")[0].off == "beta = 0, TRL 1.16's default"
    assert check(tmp_path / "run.py", version="0.18")[0].charges[0].beta == 0.04


def test_hydra_s_yaml_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(VERL)
    (one,) = check(tmp_path / "run.yaml", ["algorithm.kl_ctrl.kl_coef=0.01"])
    assert one.charges[0].beta == 0.01 and one.length == 1024
    assert check(tmp_path / "run.yaml")[0].charges[0].beta == 0.001  # which YAML 1.1 takes for a text


def test_a_config_file_behind_a_command(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text("beta: 0.01\nmax_completion_length: 64\n")
    (tmp_path / "run.sh").write_text("accelerate launch \\\n  trl grpo --config grpo.yaml --beta 0.02\n")
    (one,) = check(tmp_path / "run.sh")
    assert one.charges[0].beta == 0.02 and one.length == 64
    assert check(tmp_path / "grpo.yaml", method="grpo")[0].charges[0].beta == 0.01


def test_a_beta_that_is_decided_elsewhere_is_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text('python3 -m openrlhf.cli.train_ppo_ray --algo.kl.init_coef "$KL"\n')
    (one,) = check(tmp_path / "run.sh")
    assert one.charges[0].beta is None and "not told by the file" in text(one, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.py", "def f(:", "no Python: line 1"),
        ("run.py", "print(1)", "sets up no training"),
        ("run.py", "p = TrlParser()\nGRPOTrainer(args=a)", "from the command line"),
        ("run.yaml", "a: [", "cannot be read"),
        ("run.yaml", "- 1", "no table"),
        ("run.yaml", "beta: 0.1", "--method grpo"),
        ("run.yaml", "learning_rate: 1", "tells whose config"),
        ("run.toml", "a =", "cannot be read"),
        ("run.json", "{", "cannot be read"),
        ("run.sh", "echo hello", "sets up no training"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=said):
        check(tmp_path / name)


def test_what_is_no_file_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file"):
        check(tmp_path)
    (tmp_path / "run.sh").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        check(tmp_path / "run.sh")
    with pytest.raises(UsageError, match="no version"):
        (tmp_path / "a.py").write_text("GRPOConfig()")
        check(tmp_path / "a.py", version="latest")


def test_our_own_defaults_are_those_of_the_trainer() -> None:
    assert DEFAULT_TARGET == kl_config.DEFAULT_TARGET and DEFAULT_BETA == kl_config.DEFAULT_BETA
    assert DEFAULT_BETA_IN_DEVIATIONS == kl_config.DEFAULT_BETA_IN_DEVIATIONS


def test_our_own_algorithms_that_divide_by_the_spread(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('out = "o"\n[algorithm]\nkind = "gspo"\n')
    (charge,) = check(tmp_path / "run.toml")[0].charges
    assert charge.spread and charge.beta == DEFAULT_BETA_IN_DEVIATIONS
    (charge,) = check(tmp_path / "run.toml", ["algorithm.std=none"])[0].charges
    assert not charge.spread and charge.beta == DEFAULT_BETA


@pytest.mark.parametrize("more", ["", "[kl]\nbeta = 0.1\n", '[kl]\ntarget = "4 nats/sequence"\n'])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_our_own_leash_is_the_trainer_s(tmp_path: Path, kind: str, more: str) -> None:
    """Penalty, first beta and target of every algorithm, with and without a [kl], as the trainer resolves them."""
    body = f'out = "o"\nrewards = [{{ use = "vader" }}]\n{more}[model]\npolicy = "kleash:tiny"\n'
    (tmp_path / "run.toml").write_text(f'{body}[data]\nprompts = "p.txt"\n[algorithm]\nkind = "{kind}"\n')
    kl, (one,) = load_config(tmp_path / "run.toml", []).kl, check(tmp_path / "run.toml")
    if kl.penalty.kind == "none":
        assert one.off and not one.charges
        return
    (charge,) = one.charges
    where = {"in_reward": "reward", "in_preference": "preference", "exact": "loss"}[kl.penalty.kind]
    aim = kl.target_at(0)
    assert (charge.where, charge.beta) == (where, kl.first_beta)
    assert charge.target == (None if aim is None else aim.value)
    assert charge.unit == ("nats/sequence" if aim is None else aim.unit)  # kleash logs its KL whatever is held


def test_what_bends_our_own_gradient_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('out = "o"\n[algorithm]\nkind = "gspo"\n')
    as_it_is = check(tmp_path / "run.toml")[0].charges[0].gradient
    plain = check(tmp_path / "run.toml", ["algorithm.std=none", "algorithm.length=constant"])[0].charges[0].gradient
    assert as_it_is.startswith("near ") and plain == "the reverse KL of the whole sequence"


def test_a_controller_s_numbers_that_are_decided_elsewhere(tmp_path: Path) -> None:
    line = "python -m verl.trainer.main_ppo algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive "
    held = "algorithm.kl_ctrl."
    for settings in (f"{held}target_kl=$T", f"{held}target_kl=0 {held}kl_coef=$B", f"{held}horizon=$H {held}kl_coef=0"):
        (tmp_path / "run.sh").write_text(line + settings + "\n")
        (one,) = check(tmp_path / "run.sh")
        assert "None" not in text(one, None)
    assert one.traps[-1].here == "beta 0, target 0.1, horizon not told by the file"


def test_verl_s_whitening_has_no_switch(tmp_path: Path) -> None:
    """norm_adv_by_std_in_grpo is GRPO's alone; REINFORCE++-baseline takes off a mean with the sample in it."""
    line = "python -m verl.trainer.main_ppo actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.rollout.n=4 "
    for advantage, spread, group in (
        ("grpo", False, 4), ("gae", True, None), ("reinforce_plus_plus", True, None),
        ("reinforce_plus_plus_baseline", True, 4),
    ):  # fmt: skip
        more = f"algorithm.adv_estimator={advantage} algorithm.norm_adv_by_std_in_grpo=False\n"
        (tmp_path / "run.sh").write_text(line + more)
        (charge,) = check(tmp_path / "run.sh")[0].charges
        assert (charge.spread, charge.group) == (spread, group), advantage


def test_ziegler_s_law_at_verl_s_defaults() -> None:
    """By multiplying: 114 steps of 1024 rows at a horizon of 10,000 for ten times the beta, 901 at 128."""
    for batch, expected in ((1024, 114), (128, 901)):
        beta, steps = 1.0, 0
        while beta < 10:
            beta, steps = beta * (1 + 0.2 * batch / 10000), steps + 1
        assert steps_to_tenfold(batch, 10000) == steps == expected


def test_every_recipe_of_ours_is_read() -> None:
    for recipe in sorted((Path(__file__).parents[2] / "recipes").glob("*.toml")):
        (one,) = check(recipe)
        json.dumps(told(one, None, None))
        assert one.given.library == "kleash"


def test_the_verb(tmp_path: Path) -> None:
    from kleash.cli import app

    (tmp_path / "run.py").write_text(SCRIPT)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "run.py"), "--to", "kleash", "--reward-std", "0.5"])
    assert done.exit_code == 0 and "beta = 0.02286" in done.output, done.output
    (tmp_path / "off.py").write_text("GRPOConfig()")
    done = CliRunner().invoke(app, ["check", str(tmp_path / "off.py"), "--json"])
    run = json.loads(done.output)["runs"][0]
    assert done.exit_code == 1 and run["kl"] == [] and run["traps"][0]["name"] == "kl-off"
    assert not failed(check(tmp_path / "run.py"))


def test_where_k3_meets_its_bound() -> None:
    """By bisection of exp(d) − d − 1 = 10."""
    low, high = 0.0, 10.0
    while high - low > LOOP:
        middle = (low + high) / 2
        low, high = (middle, high) if math.exp(middle) - middle - 1 < 10 else (low, middle)
    assert f"from {low:.2f} nats" in TRAPS["dead-zone"].what and f"{math.exp(low):.1f} times" in TRAPS["dead-zone"].what


def test_the_page_has_the_table_of_the_code() -> None:
    assert PAGE.read_text() == render(PAGE.read_text()), "run `make docs`"
