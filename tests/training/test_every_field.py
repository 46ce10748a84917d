"""No dead knobs: each field of each config dataclass is turned, and something that can be observed turns with it."""

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.small import OF_THE_MACHINE, settings, steps

from kleash.algorithms import ALGORITHMS, Ptx, StepPenalty
from kleash.algorithms.clip import ClipRange
from kleash.beta import CONTROLLERS
from kleash.beta.entropy import ENTROPY_LAWS, AdaptiveEntropy, DualEntropy, FixedEntropy
from kleash.errors import RunError, UsageError
from kleash.kl.penalties import PENALTIES
from kleash.models import checkpoint_files
from kleash.models.fingerprint import tensors_digest
from kleash.models.following import FOLLOWING
from kleash.models.load import load
from kleash.models.spec import Adapter, ModelSpec, WeightedReference
from kleash.records import Reading, Target
from kleash.rewards.spec import RewardSpec
from kleash.rl.mismatch import Mismatch
from kleash.runlog import Evaluation
from kleash.training.api import start
from kleash.training.config import DataSpec
from kleash.training.kl_config import KLSpec, TargetStep
from kleash.training.log_config import LogSpec
from kleash.training.token_weights import ClassWeights
from kleash.training.toml import parse_config
from kleash.training.train_config import TrainSpec
from kleash.training.watch_config import WatchSpec


@dataclass(frozen=True)
class Turn:
    """A run with `base` and one with `base` and `turned` differ; or turning raises `refused`."""

    turned: dict[str, Any]
    base: dict[str, Any] = field(default_factory=dict)
    refused: type[Exception] | None = None


CHAT = {"model__policy": "chat"}
HELD_OUT = {"data__held_out": "held.txt"}
LORA = {"model__adapter": {"rank": 2}}
MOVING = {"train__learning_rate": 0.05, "algorithm__epochs": 3}
CLIPPED = MOVING | {"algorithm__clip": {"low": 0.3, "high": 0.3}}
LABELLED = {"kl": {"beta": 0.1}}
UNCLIPPED = MOVING | {"algorithm__clip": "none"}
#: What an algorithm needs besides before its off-policy gradient can be "full".
UNWHITENED = {"ppo": {"algorithm__whiten": False}}
#: A reward of two values, so that some groups have no spread.
TWO_VALUED = {"rewards": [{"use": "regex", "args": {"pattern": "t4"}}]}
#: 21 rows of the same reward are a finding of the monitor.
DEAD = {"rewards": [{"use": "rewards.py:flat"}], "train__steps": 23, "train__max_new_tokens": 2}
LOWERS = {"every": 21, "on_finding": "lower_lr"}
SCHEDULE = [{"at": 0, "target": "0.5 nats/sequence"}, {"at": 1, "target": "2 nats/sequence"}]
PPO = {"algorithm__kind": "ppo"}
STEP_PENALTY = {"target": "0.01 nats/token", "beta": 0.5}
PRICED = PPO | MOVING | {"algorithm__step_penalty": STEP_PENALTY}
PTX = {"texts": "texts.jsonl", "column": "first", "weight": 1.0, "per_update": 2, "max_tokens": 3}
MIXED = PPO | {"algorithm__ptx": PTX}
TWO = {"use": ["rewards.py:mixed", "rewards.py:even"]}
UWO = TWO | {"combine": "uwo"}
IN_REWARD_K2 = {"kind": "in_reward", "estimator": "k2"}
EACH = {"train__checkpoint_every": 1, "train__steps": 6}
QUICK = {"train__learning_rate": 0.05}
FORMED = QUICK | {"kl__format": "t[0-9]", "train__max_new_tokens": 20}
K3 = {"kl__penalty": {"kind": "in_loss", "estimator": "k3"}}

#: A sampler with log-probs of its own, of a policy that is another one.
ENGINE = {"data__rollout": "rewards.py:engine"}
MASKED = {"kind": "masked", "cap": 1.5}

EMA = {"model__reference_update": {"kind": "ema", "rate": 0.5}}
TWO_REFERENCES = [{"model": "start", "weight": 0.5}, {"model": "other", "weight": 0.5}]
OTHER_TWO = [{"model": "start", "weight": 0.5}, {"model": "chat", "weight": 0.5}]
EACH_RESET = {"model__reference_update": {"kind": "reset", "every": 1}}
STALLS = {"rewards": [{"use": "regex", "args": {"pattern": "no such text"}}]}

#: In the words of the small tokenizer.
TEMPLATE = (
    "{% for m in messages %}{{ 't20' if m.role == 'user' else 't21' }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}t22{% endif %}{% if short %} t23{% endif %}"
)


def _importance(kind: str) -> Turn:
    return Turn(MOVING | {"kl__penalty": {"kind": kind, "importance": "token"}}, MOVING | {"kl__penalty": kind})


#: How a section's fields are turned in a whole run. Paths are relative to the test's directory.
#: Random models of this size have an entropy of about 3 nats per token.
ADAPTIVE = {"kind": "adaptive", "target": "1 nats/token", "delta": 0.1, "start": 0.1}
DUAL = {"kind": "dual", "target": "1 nats/token", "start": 0.1}
HIGH = {"target": "9 nats/token"}

TURNS: dict[type, dict[str, Turn]] = {
    ModelSpec: {
        "policy": Turn({"model__policy": "other"}),
        "reference": Turn({"model__reference": "other"}),
        "reference_dtype": Turn({"model__reference_dtype": "bfloat16"}),
        "reference_update": Turn(EACH_RESET),
        "adapter": Turn(LORA),
        "quantize": Turn(LORA | {"model__quantize": "4bit"}, LORA),
        "critic": Turn(PPO | {"model__critic": "separate"}, PPO),
        "dtype": Turn({"model__dtype": "bfloat16"}),
        "device": Turn({"model__device": "nowhere"}, refused=UsageError),
    },
    WeightedReference: {
        "model": Turn({"model__reference": TWO_REFERENCES}, {"model__reference": OTHER_TWO}),
        "weight": Turn(
            {"model__reference": [x | {"weight": w} for x, w in zip(TWO_REFERENCES, (0.3, 0.7), strict=True)]},
            {"model__reference": TWO_REFERENCES},
        ),
    },
    Adapter: {
        "rank": Turn({"model__adapter": {"rank": 3}}, LORA),
        "alpha": Turn({"model__adapter": {"rank": 2, "alpha": 8}}, LORA),
        "targets": Turn({"model__adapter": {"rank": 2, "targets": ["q_proj"]}}, LORA),
        "dora": Turn(QUICK | {"model__adapter": {"rank": 2, "dora": True}}, QUICK | LORA),
        "rslora": Turn(QUICK | {"model__adapter": {"rank": 2, "rslora": True}}, QUICK | LORA),
    },
    DataSpec: {
        "held_out": Turn({"data__held_out": "held.txt"}),
        "chat": Turn({"data__chat": True}, CHAT),
        "system": Turn({"data__system": "t9"}, CHAT),
        "add_generation_prompt": Turn({"data__add_generation_prompt": False}, CHAT | {"data__chat": True}),
        "template": Turn({"data__template": {"short": True}}, CHAT | {"data__chat": True}),
        "rollout": Turn({"data__rollout": "rewards.py:two_tokens"}),
        "prompts": Turn({"data__prompts": "two.jsonl", "data__column": "first"}),
        "column": Turn({"data__column": "second"}, {"data__prompts": "two.jsonl", "data__column": "first"}),
    },
    RewardSpec: {
        "use": Turn({"rewards": [{"use": "rewards.py:some"}]}),
        "weight": Turn({"rewards": [{"use": "rewards.py:mixed", "weight": 3.0}]}),
        "name": Turn({"rewards": [{"use": "rewards.py:mixed", "name": "mine"}]}),
        "timeout_s": Turn({"rewards": [{"use": "rewards.py:slow", "timeout_s": 0.05}]}, refused=RunError),
        "args": Turn(
            {"rewards": [{"use": "regex", "args": {"pattern": "t4"}}]},
            {"rewards": [{"use": "regex", "args": {"pattern": "t3"}}]},
        ),
        "shape": Turn({"rewards": [{"use": "rewards.py:mixed", "shape": ["group"]}]}),
        "combine": Turn({"rewards": [TWO | {"combine": "min"}]}, {"rewards": [TWO]}),
        "uwo_lambda": Turn({"rewards": [UWO | {"uwo_lambda": 2.0}]}, {"rewards": [UWO]}),
    },
    KLSpec: {
        "penalty": Turn(K3),
        "target": Turn({"kl__target": "3 nats/sequence"}),
        "budget": Turn(MOVING | {"kl__budget": "0.51 nats/sequence"}, MOVING),
        "beta": Turn({"kl__beta": 0.5}),
        "controller": Turn({"kl__controller": "dual"}),
        "weights": Turn(QUICK | {"kl__weights": {"content": 0.1}}, QUICK),
        "format": Turn({"kl__format": "t4|t5"}),
    },
    ClassWeights: {
        name: Turn(FORMED | {"kl__weights": {name: 3.0}}, FORMED | {"kl__weights": {}})
        for name in ("eos", "format", "content")
    },
    TargetStep: {
        "at": Turn({"kl__target": [SCHEDULE[0], SCHEDULE[1] | {"at": 2}]}, {"kl__target": SCHEDULE}),
        "target": Turn(
            {"kl__target": [SCHEDULE[0], SCHEDULE[1] | {"target": "3 nats/sequence"}]}, {"kl__target": SCHEDULE}
        ),
    },
    TrainSpec: {
        "steps": Turn({"train__steps": 2}),
        "prompts_per_step": Turn({"train__prompts_per_step": 2}),
        "groups_per_pass": Turn({"train__groups_per_pass": 1}),
        "max_new_tokens": Turn({"train__max_new_tokens": 5}),
        "min_new_tokens": Turn({"train__min_new_tokens": 8}),
        "temperature": Turn({"train__temperature": 0.7}),
        "top_p": Turn({"train__top_p": 0.5}),
        "top_k": Turn({"train__top_k": 3}),
        "stop": Turn({"train__stop": ["t5", "t6", "t7"]}),
        "learning_rate": Turn({"train__learning_rate": 1e-2}),
        "critic_bias_rate": Turn(PPO | {"train__critic_bias_rate": 1e-1}, PPO),
        "adam_betas": Turn({"train__adam_betas": [0.5, 0.95]}),
        "weight_decay": Turn({"train__weight_decay": 0.5}),
        "warmup_updates": Turn({"train__warmup_updates": 4}),
        "max_grad_norm": Turn({"train__max_grad_norm": 1e-9}),
        "checkpoint_every": Turn({"train__checkpoint_every": 1}),
        "keep": Turn(EACH | {"train__keep": 1}, EACH),
        "evaluate_every": Turn({"train__evaluate_every": 1}, HELD_OUT),
        "evaluate_samples": Turn({"train__evaluate_samples": 2}, HELD_OUT),
        "seed": Turn({"train__seed": 1}),
        "mismatch": Turn(ENGINE | {"train__mismatch": MASKED}, ENGINE),
    },
    Mismatch: {
        "kind": Turn(ENGINE | {"train__mismatch": {"kind": "masked"}}, ENGINE | {"train__mismatch": {}}),
        "level": Turn(ENGINE | {"train__mismatch": {"level": "token"}}, ENGINE | {"train__mismatch": {}}),
        "cap": Turn(ENGINE | {"train__mismatch": {"cap": 1.1}}, ENGINE | {"train__mismatch": {}}),
        "floor": Turn(ENGINE | {"train__mismatch": MASKED | {"floor": 0.0}}, ENGINE | {"train__mismatch": MASKED}),
    },
    FOLLOWING["ema"]: {
        "rate": Turn({"model__reference_update": {"kind": "ema", "rate": 0.9}}, EMA),
        "every": Turn({"model__reference_update": {"kind": "ema", "rate": 0.5, "every": 2}}, EMA),
    },
    FOLLOWING["reset"]: {
        "every": Turn({"model__reference_update": {"kind": "reset", "every": 2}}, EACH_RESET),
    },
    FOLLOWING["stall"]: {
        "patience": Turn(
            STALLS | {"model__reference_update": {"kind": "stall", "patience": 2}},
            STALLS | {"model__reference_update": {"kind": "stall", "patience": 1}},
        ),
    },
    ClipRange: {
        "low": Turn(MOVING | {"algorithm__clip": {"low": 0.01, "high": 0.3}}, CLIPPED),
        "high": Turn(MOVING | {"algorithm__clip": {"low": 0.3, "high": 0.01}}, CLIPPED),
    },
    StepPenalty: {
        "target": Turn(PRICED | {"algorithm__step_penalty": STEP_PENALTY | {"target": "9 nats/token"}}, PRICED),
        "beta": Turn(PRICED | {"algorithm__step_penalty": STEP_PENALTY | {"beta": 2.0}}, PRICED),
    },
    Ptx: {
        name: Turn(PPO | {"algorithm__ptx": PTX | {name: turned}}, MIXED)
        for name, turned in {
            "texts": "texts.txt",
            "weight": 2.0,
            "per_update": 1,
            "max_tokens": 2,
            "column": "second",
        }.items()
    },
    WatchSpec: {
        "on_finding": Turn({"watch": LOWERS}, DEAD | {"watch": {"every": 21}}),
        "every": Turn({"watch": LOWERS | {"every": 22}}, DEAD | {"watch": LOWERS}),
    },
    LogSpec: {
        "to": Turn({"log__to": "tensorboard"}),
        "project": Turn({"log__project": " "}, refused=UsageError),  # reaches W&B and trackio: test_boards.py
    },
    FixedEntropy: {
        "coef": Turn({"entropy": {"coef": 0.2}}, {"entropy": {"coef": 0.1}}),
        "scope": Turn({"entropy": {"coef": 0.1, "scope": "sequence"}}, {"entropy": {"coef": 0.1}}),
    },
    AdaptiveEntropy: {
        name: Turn({"entropy": ADAPTIVE | {name: value}}, {"entropy": ADAPTIVE})
        for name, value in {"target": "9 nats/token", "delta": 0.2, "start": 0.3, "scope": "sequence"}.items()
    }
    | {"most": Turn({"entropy": ADAPTIVE | HIGH | {"most": 0.1}}, {"entropy": ADAPTIVE | HIGH})},
    DualEntropy: {
        name: Turn({"entropy": DUAL | {name: value}}, {"entropy": DUAL})
        for name, value in {
            "target": "2 nats/token",
            "rate": 0.2,
            "start": 0.2,
            "least": 0.1,
            "scope": "sequence",
        }.items()
    }
    | {"most": Turn({"entropy": DUAL | HIGH | {"most": 0.1}}, {"entropy": DUAL | HIGH})},
    **{PENALTIES[kind]: {"importance": _importance(kind)} for kind in ("exact", "future_sampled", "chi2")},
    PENALTIES["renyi"]: {
        "alpha": Turn(MOVING | {"kl__penalty": {"kind": "renyi", "alpha": 3.0}}, MOVING | {"kl__penalty": "renyi"}),
        "importance": _importance("renyi"),
    },
    PENALTIES["in_reward"]: {
        "estimator": Turn({"kl__penalty": IN_REWARD_K2}, refused=UsageError),
        "importance": _importance("in_reward"),
    },
    PENALTIES["in_loss"]: {
        "estimator": Turn({"kl__penalty": {"kind": "in_loss", "estimator": "k2"}}, K3),
        "ratio": Turn(MOVING | {"kl__penalty": {"kind": "in_loss", "estimator": "k3", "ratio": "none"}}, MOVING | K3),
    },
    **{
        ALGORITHMS[kind]: {
            name: Turn({"algorithm__kind": kind} | turn.turned, {"algorithm__kind": kind} | turn.base, turn.refused)
            for name, turn in {
                "group_size": Turn({"algorithm__group_size": 5}),
                "epochs": Turn({"algorithm__epochs": 2}),
                "minibatches": Turn({"algorithm__minibatches": 3}),
                "clip": Turn(MOVING | {"algorithm__clip": 0.01}, UNCLIPPED),
                "prefix_cap": Turn(UNCLIPPED | {"algorithm__prefix_cap": 1.0}, UNCLIPPED),
                "off_policy": Turn({"algorithm__off_policy": "full"}, UNWHITENED.get(kind, {}) | UNCLIPPED),
                "std": Turn({"algorithm__std": "batch"}),
                "length": Turn({"algorithm__length": "constant"}, {"algorithm__length": "token_mean"}),
                "clip_value": Turn(MOVING | {"algorithm__clip_value": 0.001}, MOVING),
                "gamma": Turn({"algorithm__gamma": 0.9}),
                "gae_lambda": Turn({"algorithm__gae_lambda": 0.5}),
                "vf_coef": Turn({"algorithm__vf_coef": 1.0}),
                "whiten": Turn({"algorithm__whiten": False}),
                "step_kl_limit": Turn(MOVING | {"algorithm__step_kl_limit": 1e-4}, MOVING),
                "step_penalty": Turn(MOVING | {"algorithm__step_penalty": STEP_PENALTY}, MOVING),
                "ptx": Turn({"algorithm__ptx": PTX}),
                "baseline": Turn({"algorithm__baseline": "group"}),
                "keep": Turn({"algorithm__keep": "above_mean"}),
                "preference": Turn({"algorithm__preference": "ipo"}),
                "labels": Turn(LABELLED | {"algorithm__labels": "winner"}, LABELLED),
                "pairs": Turn(
                    {"algorithm__group_size": 3, "algorithm__pairs": "best_worst"}, {"algorithm__group_size": 3}
                ),
                "max_draws": Turn({"algorithm__max_draws": 1}, TWO_VALUED),
                "overlong": Turn({"algorithm__overlong": 0.0}),
            }.items()
            if name in {f.name for f in dataclasses.fields(ALGORITHMS[kind])}
        }
        for kind in ALGORITHMS
    },
}

#: Turned outside of a run, in a test of its own below.
ELSEWHERE = {
    (ModelSpec, "gradient_checkpointing"): "test_gradient_checkpointing_is_on",
    (ModelSpec, "trust_remote_code"): "test_foreign_code_runs_only_where_trusted",
}
CASES = [(cls, name) for cls, turns in TURNS.items() for name in turns]


def test_the_table_names_every_field():
    for cls in {*TURNS, *PENALTIES.values(), *ALGORITHMS.values(), *FOLLOWING.values(), *ENTROPY_LAWS.values()}:
        turned = set(TURNS.get(cls, {})) | {name for owner, name in ELSEWHERE if owner is cls} | {"kind"}
        assert {f.name for f in dataclasses.fields(cls)} <= turned, cls
    assert all(test in globals() for test in ELSEWHERE.values())


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    from tests.models import build

    directory = tmp_path_factory.mktemp("knobs")
    settings(directory)
    build.checkpoint(
        directory / "other", seed=5, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1
    )
    build.checkpoint(
        directory / "chat", hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1
    )
    tokenizer = build.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory / "chat")
    (directory / "held.txt").write_text("t11 t12\nt13\n")
    rows = [{"first": f"t{i + 3} t4", "second": f"t{i + 9}"} for i in range(6)]
    (directory / "two.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = [{"first": f"t{i + 3} t4 t{i + 5}", "second": f"t{i + 9} t8 t3 t4"} for i in range(4)]
    (directory / "texts.jsonl").write_text("\n".join(map(json.dumps, texts)))
    (directory / "texts.txt").write_text("t11 t12 t7\nt13 t5 t9\n")
    with (directory / "rewards.py").open("a") as file:
        file.write("\ndef slow(completions, **columns):\n    time.sleep(0.1)\n    return even(completions)\n")
        file.write(
            "\ndef two_tokens(prompts, generate):\n    drawn = generate([[]] * len(prompts), max_new_tokens=2)\n"
        )
        file.write('    return [{"ids": ids, "mask": [True] * len(ids)} for ids in drawn]\n')
        file.write("\ndef engine(prompts, generate):\n    drawn = generate([[]] * len(prompts))\n")
        file.write('    told = [{"ids": ids, "mask": [True] * len(ids)} for ids in drawn]\n')
        file.write('    return [e | {"logprobs": [-2.0 - i % 5 for i in e["ids"]]} for e in told]\n')
    return directory


def observed(home: Path, changes: dict[str, Any], seen: dict[str, Any]) -> Any:
    """Everything a run leaves that does not name the machine: records, weights, checkpoints."""
    key = json.dumps(changes, sort_keys=True)
    if key not in seen:
        out = home / f"run-{len(list(home.glob('run-*')))}"
        run = start(parse_config(settings(home, **{"out": str(out), "train__steps": 3} | _located(home, changes))))
        last = load(ModelSpec(policy=str(run.checkpoints[-1].path))).policy
        seen[key] = (
            [{k: v for k, v in asdict(s).items() if k not in OF_THE_MACHINE} for s in steps(out)],
            tensors_digest(last.state_dict().items()),
            [c.path.name for c in run.checkpoints],
            sorted(folder.name for folder in out.iterdir() if folder.is_dir()),
            [
                {k: v for k, v in asdict(e).items() if k not in OF_THE_MACHINE}
                for e in run.events
                if isinstance(e, Evaluation)
            ],
        )
    return seen[key]


def _located(home: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Names of files in `home` as paths."""

    def located(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: located(v) for k, v in value.items()}
        if isinstance(value, list):
            return [located(v) for v in value]
        name = value.partition(":")[0] if isinstance(value, str) else ""
        return str(home / value) if name and (home / name).exists() else value

    return located(changes)


_seen: dict[str, Any] = {}


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "name"), CASES, ids=[f"{c.__name__}.{n}" for c, n in CASES])
def test_every_field_has_effect(cls, name, home):
    turn = TURNS[cls][name]
    if turn.refused is not None:
        with pytest.raises(turn.refused):
            observed(home, turn.turned, _seen)
        return
    assert observed(home, turn.base, _seen) != observed(home, turn.base | turn.turned, _seen)


@pytest.mark.slow
def test_a_run_repeats_itself(home):
    """Without this, a difference would prove nothing."""
    assert observed(home, {}, {}) == observed(home, {}, _seen)


def test_out_is_where_the_run_lies(tmp_path):
    run = start(parse_config(settings(tmp_path, out=str(tmp_path / "there"), train__steps=1)))
    assert run.path == tmp_path / "there"
    assert (tmp_path / "there" / "events.jsonl").exists()


def test_gradient_checkpointing_is_on(home):
    def on(value: bool) -> bool:
        spec = ModelSpec(policy=str(home / "model"), gradient_checkpointing=value)
        return load(spec).policy.causal.is_activation_checkpointing

    assert on(True)
    assert not on(False)


def test_foreign_code_runs_only_where_trusted(tmp_path):
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModelForCausalLM": "own.Model"}, "model_type": "own"}')
    with pytest.raises(UsageError, match="trust_remote_code"):
        checkpoint_files.read_model(tmp_path, torch.float32, False)
    with pytest.raises(UsageError, match=r"holds no model\.safetensors"):  # the next thing asked for
        checkpoint_files.read_model(tmp_path, torch.float32, True)


# ── the laws of beta: pure functions, so their knobs are turned without a run ───────────────────────────────

TARGET = Target(4.0, "nats/sequence")
KLS = [1.0, 5.0, 9.0, 40.0, 40.0, 40.0, 5.0, 0.1, 0.1, 0.1]
LAWS: dict[str, dict[str, dict[str, Any]]] = {
    "constant": {},
    "linear": {"end": {"end": 0.2, "steps": 5}, "steps": {"end": 0.1, "steps": 7}},
    "cosine": {"end": {"end": 0.2, "steps": 5}, "steps": {"end": 0.1, "steps": 7}},
    "pi": {"kp": {"kp": 0.5}, "ki": {"ki": 0.2}},
    "pid": {"kp": {"kp": 0.5}, "ki": {"ki": 0.2}, "kd": {"kd": 0.1}},
    "dual": {"rate": {"rate": 0.1}},
    "ziegler": {
        "form": {"form": "paper"},
        "horizon": {"horizon": 100},
        "gain": {"form": "paper", "gain": 0.3},
    },
    "ppo": {"band": {"band": 3.0}, "factor": {"factor": 3.0}},
}
BOUNDS = {"error_clip": {"error_clip": 0.1}, "beta_min": {"beta_min": 0.0495}, "beta_max": {"beta_max": 0.06}}
NEEDED = {"linear": {"end": 0.1, "steps": 5}, "cosine": {"end": 0.1, "steps": 5}}
BASES = {("ziegler", "gain"): {"form": "paper"}}
#: Far enough from the bounds for every law to meet them within the readings.
FAST = {
    ("ziegler", "beta_min"): {"form": "paper", "gain": 0.9},
    ("ziegler", "beta_max"): {"form": "paper", "gain": 0.9},
}


def path_of_beta(kind: str, given: dict[str, Any]) -> list[float]:
    law: Any = CONTROLLERS[kind](**NEEDED.get(kind, {}) | given)
    state, path = law.init(0.05), []
    for kl in KLS:
        reading = Reading(
            kind="kl_ref", value=kl, unit="nats/sequence", estimator="exact", n_prompts=8, n_sequences=64, n_tokens=999
        )
        state = law.update(state, reading, TARGET)
        path.append(state.beta)
    return path


def _law_cases() -> list[tuple[str, str]]:
    return [(kind, f.name) for kind, cls in CONTROLLERS.items() for f in dataclasses.fields(cls) if f.name != "kind"]


@pytest.mark.parametrize(("kind", "name"), _law_cases())
def test_every_field_of_a_law_has_effect(kind, name):
    turned: dict[str, Any] = (LAWS[kind] | BOUNDS)[name]
    base = FAST.get((kind, name), BASES.get((kind, name), {}))
    assert path_of_beta(kind, base | turned) != path_of_beta(kind, base)
