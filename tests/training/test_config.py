"""From TOML to a checked config: what is accepted, what each error says, and that the resolved form is the config."""

import json
from typing import Any

import pytest

from kleash.algorithms import RLOO
from kleash.beta import PI, Constant, Dual, Linear
from kleash.errors import UsageError
from kleash.kl.penalties import Exact, InLoss, NoPenalty
from kleash.records import ControllerState
from kleash.training.config import Config, resolved
from kleash.training.kl_config import DEFAULT_BETA, DEFAULT_TARGET, KLSpec, TargetStep
from kleash.training.loosening import continued, leash, loosened
from kleash.training.toml import dump_config, load_config, parse_config, with_overrides, with_settings

WHOLE = """
out = "runs/polite"
[model]
policy = "./my-sft"
adapter = { rank = 16, alpha = 32 }
[data]
prompts = "prompts.jsonl"
[[rewards]]
use = "./reward.py:polite"
weight = 2
[algorithm]
kind = "grpo"
group_size = 8
[kl]
penalty = { kind = "in_loss", estimator = "k3", ratio = "live" }
target = "4 nats/sequence"
controller = { kind = "pi", kp = 1, ki = 0.1 }
[train]
steps = 300
learning_rate = 1
temperature = 1
stop = ["\\n"]
adam_betas = [0, 0.95]
"""


def tree(**sections: Any) -> dict[str, Any]:
    return {
        "out": "o",
        "model": {"policy": "m"},
        "data": {"prompts": "p.txt"},
        "rewards": [{"use": "vader"}],
        **sections,
    }


def refused(**sections: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse_config(tree(**sections))
    return str(caught.value)


def test_an_overlong_completion_is_punished_once():
    shaped = [{"use": "vader", "shape": [{"kind": "overlong", "limit": 128, "cache": 16}]}]
    assert "would both punish" in refused(algorithm={"kind": "dapo"}, rewards=shaped)
    parse_config(tree(algorithm={"kind": "dapo", "overlong": 0}, rewards=shaped))


def test_a_whole_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(WHOLE)
    config = load_config(path)
    assert config.kl.penalty == InLoss(estimator="k3", ratio="live")
    assert config.kl.controller == PI(kp=1.0, ki=0.1)
    assert config.rewards[0].weight == 2.0
    # TOML's integers where a float belongs are that float, in a fresh run and in the log it is resumed from.
    for value in (config.train.learning_rate, config.train.temperature, config.train.adam_betas[0]):
        assert isinstance(value, float)
    assert config.train.stop == ("\n",)


def test_overrides_are_toml_or_else_text(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(WHOLE)
    given = ["kl.target=2 nats/sequence", 'model.policy="other"', "train.steps=7", "rewards.0.weight=0.5"]
    config = load_config(path, [*given, "kl.beta=0.1", "model.adapter.rank=4"])
    assert (config.kl.target, config.model.policy, config.train.steps) == ("2 nats/sequence", "other", 7)
    assert (config.rewards[0].weight, config.kl.beta) == (0.5, 0.1)
    assert (config.model.adapter.rank, config.model.adapter.alpha) == (4, 32.0)


def test_a_new_kind_drops_the_old_members_keys():
    before = tree(kl={"penalty": {"kind": "in_loss", "estimator": "k3"}, "controller": {"kind": "pi", "kp": 2}})
    config = parse_config(with_overrides(before, ["kl.penalty.kind=exact", "kl.controller.kind=dual"]))
    assert config.kl.penalty == Exact()
    assert config.kl.controller == Dual()
    same = parse_config(with_overrides(before, ["kl.penalty.kind=in_loss"]))
    assert same.kl.penalty == InLoss(estimator="k3")
    # The default kind named is no new kind, and what is asked for along with a kind stays, whatever the order.
    short = tree(algorithm={"group_size": 4})
    assert parse_config(with_overrides(short, ["algorithm.kind=grpo"])).algorithm.group_size == 4
    for given in (["algorithm.epochs=2", "algorithm.kind=rloo"], ["algorithm.kind=rloo", "algorithm.epochs=2"]):
        assert parse_config(with_overrides(short, given)).algorithm == RLOO(epochs=2)
    # A kind given by its bare name can be given keys.
    config = parse_config(with_overrides(tree(kl={"controller": "dual"}), ["kl.controller.rate=0.05"]))
    assert config.kl.controller == Dual(rate=0.05)
    assert before["kl"]["controller"] == {"kind": "pi", "kp": 2}, "the tree given is not changed"


def test_settings_from_python():
    config = parse_config(with_settings(tree(), {"train.steps": 5, "kl.penalty": "none", "algorithm.kind": "rloo"}))
    assert (config.train.steps, config.kl.penalty, config.algorithm.kind) == (5, NoPenalty(), "rloo")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("kl.beta", "section.key=value"),
        ("=3", "section.key=value"),
        ("kl..beta=3", "section.key=value"),
        ("rewards.1.weight=2", "the list has 1, from 0"),
        ("train.steps.more=2", "has no keys below it"),
        ("kl.bta=0.1", "did you mean 'beta'"),
    ],
)
def test_an_override_that_cannot_be_meant(assignment, said):
    with pytest.raises(UsageError, match=said):
        parse_config(with_overrides(tree(train={"steps": 3}), [assignment]))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"kl": {"taget": "4 nats/sequence"}}, "unknown key 'kl.taget'; did you mean 'target'?"),
        ({"kll": {}}, "unknown key 'kll'; did you mean 'kl'?"),
        ({"train": {"step": 3}}, "unknown key 'train.step'; did you mean 'steps'?"),
        ({"model": {"policy": "m", "adapter": {"rnk": 3}}}, "unknown key 'model.adapter.rnk'; did you mean 'rank'?"),
        ({"rewards": [{"use": "vader", "wieght": 1}]}, "unknown key 'rewards.0.wieght'; did you mean 'weight'?"),
        ({"algorithm": {"kind": "rloo", "epoch": 2}}, "unknown key 'algorithm.epoch'; did you mean 'epochs'?"),
        ({"kl": {"controller": {"kind": "pi", "ke": 2}}}, "unknown key 'kl.controller.ke'; did you mean"),
        ({"kl": {"penalty": {"kind": "in_loss", "ratios": "live"}}}, "did you mean 'ratio'?"),
        ({"kl": {"target": [{"at": 0, "traget": "x"}]}}, "did you mean 'target'?"),
        ({"kl": {"target": [3]}}, "kl.target.0 = 3"),
        ({"algorithm": {"clip": "non"}}, "algorithm.clip = 'non'"),
        ({"wacth": {}}, "unknown key 'wacth'; did you mean 'watch'?"),
        ({"algorithm": {"kind": "gpro"}}, "did you mean 'grpo' or 'gspo'?"),
        ({"kl": {"penalty": "exat"}}, "did you mean 'exact'?"),
        ({"kl": {"controller": "P I"}}, "known here: constant, "),
    ],
)
def test_an_unknown_name_gives_the_nearest(sections, said):
    assert said in refused(**sections)


def test_missing_sections_are_named():
    with pytest.raises(UsageError) as caught:
        parse_config({"out": "o", "model": {}, "rewards": []})
    assert "'data' is missing" in str(caught.value)
    assert "'model.policy' is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"rewards": []}, "name at least one"),
        ({"kl": {"target": "4"}}, '"4 nats/sequence" or "0.02 nats/token"'),
        ({"kl": {"target": 4}}, '"4 nats/sequence" or "0.02 nats/token"'),
        ({"kl": {"target": "-4 nats/token"}}, "positive number of nats"),
        ({"kl": {"target": "x nats/token"}}, "no unit kleash knows"),
        ({"kl": {"beta": -0.1}}, "must be at least 0"),
        ({"kl": {"beta": 0.1, "penalty": "none"}}, 'use penalty = "exact"'),
        ({"kl": {"target": "4 nats/sequence", "penalty": "none"}}, "cannot hold a target"),
        ({"kl": {"controller": "pi", "penalty": "none"}}, "or a controller"),
        ({"kl": {"controller": {"kind": "linear", "end": 1, "steps": 2}, "penalty": "none"}}, "or a controller"),
        ({"kl": {"target": "4 nats/sequence", "controller": "constant"}}, "cannot hold a target"),
        ({"kl": {"penalty": ["exact", "in_reward"]}}, "one placement at a time"),
        ({"kl": {"penalty": {"kind": "in_loss", "estimator": "k1"}}}, "gradient of exactly zero"),
        ({"kl": {"penalty": {"kind": "in_reward", "estimator": "k3"}}}, "vanishes near the reference"),
        ({"algorithm": {"group_size": 1}}, "at least 2"),
        ({"algorithm": {"minibatches": 9}}, "whole prompt groups"),
        ({"algorithm": {"off_policy": "full"}}, 'set clip = "none" too'),
        ({"algorithm": {"clip": 1}}, "between 0 and 1"),
        ({"train": {"steps": 0}}, "train.steps = 0 must be at least 1"),
        ({"train": {"groups_per_pass": 0}}, "at least 1"),
        ({"train": {"learning_rate": 0}}, "above 0"),
        ({"train": {"learning_rate": "fast"}}, "valid number"),
        ({"train": {"stop": "."}}, "should be a list"),
        ({"train": {"max_grad_norm": 0}}, "above 0"),
        ({"train": {"warmup_updates": -1}}, "at least 0"),
        ({"train": {"weight_decay": -1}}, "at least 0"),
        ({"train": {"adam_betas": [1.0, 0.9]}}, "below 1"),
        ({"train": {"seed": -1}}, "at least 0"),
        ({"train": {"seed": 2**63}}, "below 2^63"),
        ({"train": {"steps": 2.5}}, "train.steps = 2.5"),
        ({"model": {"policy": " "}}, "model.policy is empty"),
        ({"model": {"policy": "m", "dtype": "float16"}}, "model.dtype"),
        ({"kl": {"beta": float("nan")}}, "kl.beta"),
    ],
)
def test_a_bad_value_says_what_would_be_right(sections, said):
    assert said in refused(**sections)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ([{"at": 5, "target": "4 nats/token"}], "at = 0"),
        ([{"at": 0, "target": "4 nats/token"}, {"at": 0, "target": "5 nats/token"}], "must rise"),
        ([{"at": 0, "target": "4 nats/token"}, {"at": 9, "target": "5 nats/sequence"}], "same unit"),
        ([{"at": 0, "target": "4"}], "has no unit"),
    ],
)
def test_rules_of_a_schedule(schedule, said):
    assert said in refused(kl={"target": schedule})


def test_the_target_in_force():
    kl = KLSpec(target=(TargetStep(at=0, target="4 nats/sequence"), TargetStep(at=10, target="2 nats/sequence")))
    assert [kl.target_at(step).value for step in (0, 9, 10, 99)] == [4.0, 4.0, 2.0, 2.0]
    assert KLSpec(beta=0.1).target_at(0) is None
    assert str(KLSpec().target_at(0)) == DEFAULT_TARGET


@pytest.mark.parametrize(
    ("kl", "law", "beta", "holds"),
    [
        (KLSpec(), PI(), DEFAULT_BETA, True),
        (KLSpec(beta=0.2), Constant(), 0.2, False),
        (KLSpec(beta=0.0), Constant(), 0.0, False),
        (KLSpec(target="4 nats/sequence", beta=0.2), PI(), 0.2, True),
        (KLSpec(controller=Dual()), Dual(), DEFAULT_BETA, True),
        (KLSpec(controller=Dual(), beta=0.3), Dual(), 0.3, True),
        (KLSpec(controller=Linear(end=0.0, steps=9)), Linear(end=0.0, steps=9), DEFAULT_BETA, False),
        (KLSpec(penalty=NoPenalty()), Constant(), 0.0, False),
    ],
)
def test_what_is_left_out_is_decided_here(kl, law, beta, holds):
    assert (kl.law, kl.first_beta, bool(kl.schedule)) == (law, beta, holds)


@pytest.mark.parametrize(
    ("kl", "beta", "target"),
    [
        (None, 0.5, DEFAULT_TARGET),
        ({"target": "4 nats/sequence"}, 0.5, "4 nats/sequence"),
        ({"controller": "dual"}, 0.5, DEFAULT_TARGET),
        ({"controller": {"kind": "linear", "end": 0, "steps": 10}}, 0.5, None),
        ({"target": "4 nats/sequence", "beta": 0.05}, 0.05, "4 nats/sequence"),
        ({"penalty": "none"}, 0.0, None),
    ],
)
def test_a_reward_in_standard_deviations_starts_from_a_larger_beta(kl, beta, target):
    said = {} if kl is None else {"kl": kl}
    config = parse_config(tree(algorithm={"kind": "gspo"}, **said))
    assert (config.kl.first_beta, config.kl.target) == (beta, target)
    assert parse_config(tree(algorithm={"kind": "gspo", "std": "none"}, **said)).kl == parse_config(tree(**said)).kl


def test_best_of_n_starts_from_a_beta_for_ranks():
    assert parse_config(tree(algorithm={"kind": "best_of_n"})).kl.first_beta == 0.5
    assert parse_config(tree(algorithm={"kind": "best_of_n"}, kl={"beta": 0.2})).kl.first_beta == 0.2


def test_reinforce_pp_has_its_papers_penalty_where_there_is_no_kl_section():
    assert parse_config(tree(algorithm={"kind": "reinforce++"})).kl.penalty.kind == "in_reward"
    assert parse_config(tree(algorithm={"kind": "reinforce++"}, kl={"beta": 0.2})).kl.penalty.kind == "exact"


RESOLVABLE: list[dict[str, Any]] = [
    {},
    {"algorithm": {"kind": "gspo"}},
    {"kl": {"beta": 0.1}},
    {"kl": {"penalty": "none"}},
    {"kl": {"target": [{"at": 0, "target": "4 nats/token"}, {"at": 3, "target": "2 nats/token"}]}},
    {"kl": {"controller": {"kind": "linear", "end": 0, "steps": 10}, "penalty": {"kind": "in_loss"}}},
    {"kl": {"controller": {"kind": "ziegler", "form": "paper"}}, "algorithm": {"kind": "rloo", "clip": "none"}},
    {"model": {"policy": "m", "adapter": {"rank": 4, "targets": ["q_proj"]}}, "train": {"groups_per_pass": 2}},
]


@pytest.mark.parametrize("sections", RESOLVABLE)
def test_the_dumped_form_is_the_config(sections):
    config = parse_config(tree(**sections))
    through_json = json.loads(json.dumps(dump_config(config)))
    assert parse_config(through_json) == config


@pytest.mark.parametrize("sections", RESOLVABLE)
def test_the_resolved_form_leaves_nothing_open_and_runs_the_same(sections):
    config = parse_config(tree(**sections))
    once = resolved(config, learning_rate=1e-5)
    plain = json.loads(json.dumps(dump_config(once)))
    assert {"beta", "controller", "penalty"} <= plain["kl"].keys()
    assert plain["train"]["learning_rate"] == 1e-5
    assert parse_config(plain) == once
    assert (once.kl.law, once.kl.first_beta, once.kl.schedule) == (
        config.kl.law,
        config.kl.first_beta,
        config.kl.schedule,
    )
    assert resolved(once, learning_rate=1e-5) == once
    assert loosened(config.kl, once.kl) == [] == loosened(once.kl, config.kl)


@pytest.mark.parametrize(("text", "said"), [("out = ", "not valid TOML"), (None, "there is no config file")])
def test_a_file_that_cannot_be_read(tmp_path, text, said):
    path = tmp_path / "run.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=said):
        load_config(path)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    text = 'out = "o"\nmodel.policy = "m"\ndata.prompts = "p"\nrewards = [{ use = "vader" }]\n'
    (tmp_path / "run.toml").write_text(text, encoding="utf-8-sig")
    assert load_config(tmp_path / "run.toml").out == "o"


def test_not_text(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(tmp_path / "run.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load_config(tmp_path)


# ── the leash on resume ────────────────────────────────────────────────────────────────────────────────────

HELD = KLSpec(target="4 nats/sequence")


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (HELD, KLSpec(target="5 nats/sequence"), "from 4 nats/sequence to 5"),
        (HELD, KLSpec(target="0.1 nats/token"), "cannot be compared"),
        (HELD, KLSpec(beta=0.1), "target is dropped"),
        (HELD, KLSpec(penalty=NoPenalty()), 'to "none"'),
        (KLSpec(beta=0.2), KLSpec(beta=0.1), "beta goes from 0.2 to 0.1"),
        (KLSpec(beta=0.2), HELD, "gives way to a target"),
        (KLSpec(beta=0.2), KLSpec(beta=0.2, controller=Linear(end=0.0, steps=5)), "beta ends at 0"),
        (HELD, KLSpec(target="4 nats/sequence", controller=PI(beta_max=1.0)), "beta_max"),
        (
            HELD,
            KLSpec(target=(TargetStep(at=0, target="4 nats/sequence"), TargetStep(at=5, target="6 nats/sequence"))),
            "at step 5",
        ),
    ],
)
def test_a_looser_leash_is_seen(before, now, said):
    assert any(said in sentence for sentence in loosened(before, now))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (HELD, HELD),
        (HELD, KLSpec(target="3 nats/sequence")),
        (KLSpec(beta=0.1), KLSpec(beta=0.2)),
        (KLSpec(beta=0.0), HELD),
        (KLSpec(penalty=NoPenalty()), HELD),
    ],
)
def test_a_tighter_leash_is_not(before, now):
    assert loosened(before, now) == []


def test_a_beta_changed_on_resume_counts_and_an_unchanged_law_goes_on():
    state = ControllerState(beta=0.3, step=7, transient=0.1, previous_error=0.2)
    assert continued(HELD, leash(HELD), state) is state
    fixed = KLSpec(beta=0.2)
    changed = continued(KLSpec(beta=0.9), json.loads(json.dumps(leash(fixed))), ControllerState(beta=0.2, step=7))
    assert (changed.beta, changed.step) == (0.9, 7)
    other = continued(KLSpec(target="4 nats/sequence", controller=Dual()), leash(HELD), state)
    assert (other.beta, other.step, other.transient) == (0.3, 7, 0.0)
    assert isinstance(parse_config(tree()), Config)


@pytest.mark.parametrize(
    "override",
    [
        "train.steps=true",
        "train.learning_rate=true",
        "kl.beta=false",
        "train.adam_betas=[0.9, false]",
        "algorithm.epochs=true",
        "kl.controller={kind = 'pid', kp = true}",
        "model.adapter={rank = true}",
        "rewards.0.weight=true",
    ],
)
def test_a_boolean_is_no_number(override):
    with pytest.raises(UsageError, match=r"= (true|false): a number belongs here, not true or false"):
        parse_config(with_overrides(tree(), [override]))


def test_a_boolean_stays_one_where_it_belongs():
    given = ["model.trust_remote_code=true", "rewards.0.args={strict = true}", "data.template={thinking = false}"]
    config = parse_config(with_overrides(tree(), given))
    assert (config.model.trust_remote_code, config.rewards[0].args, config.data.template) == (
        True,
        {"strict": True},
        {"thinking": False},
    )
