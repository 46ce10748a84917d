"""Every trap has a config that falls into it and one, next to it, that does not."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kleash.check import check
from kleash.check.traps import TRAPS


@dataclass(frozen=True, slots=True)
class Config:
    name: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)


def grpo(more: str = "", before: str = 'model = "org/model"', trainer: str = "", **options: Any) -> Config:
    text = f"from trl import GRPOConfig, GRPOTrainer\n{before}\nargs = GRPOConfig(output_dir='out', {more})\n"
    return Config("run.py", f"{text}GRPOTrainer(model=model, args=args, reward_funcs=f, {trainer})\n", options)


def python(call: str, **options: Any) -> Config:
    return Config("run.py", f"import trl\nargs = trl.{call}\n", options)


def verl(*settings: str) -> Config:
    line = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n  " + " \\\n  ".join(settings)
    return Config("run.sh", f"set -x\n{line}\n")


def orlhf(options: str) -> Config:
    return Config("run.sh", f"python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m {options}\n")


def factory(text: str) -> Config:
    return Config("run.yaml", "model_name_or_path: m\n" + text)


def swift(options: str) -> Config:
    return Config("run.sh", f"NPROC=1 swift rlhf --rlhf_type grpo --model m {options}\n")


def own(text: str) -> Config:
    return Config("run.toml", 'out = "o"\n' + text)


LOSS, REWARD = "actor_rollout_ref.actor.use_kl_loss=True", "algorithm.use_kl_in_reward=True"
TYPE, ADAPT = "actor_rollout_ref.actor.kl_loss_type", "algorithm.kl_ctrl.type=adaptive"
LORA = "actor_rollout_ref.model.lora_rank=8"
OLD_BATCH = f"{ADAPT} algorithm.kl_ctrl.horizon=10000 data.train_batch_size=64"

#: trap → (configs that fall into it, configs that do not).
CASES: dict[str, tuple[list[Config], list[Config]]] = {
    "kl-off": (
        [grpo(), grpo("beta=None"), verl(), orlhf("--algo.kl.init_coef 0"), swift("--beta 0"), own("[kl]\nbeta = 0\n"),
         verl(LOSS, "actor_rollout_ref.actor.kl_loss_coef=0"), factory("stage: sft\n")],
        [grpo("beta=0.01"), grpo(version="0.18"), verl(LOSS), orlhf(""), swift(""), own(""), factory("stage: dpo\n")],
    ),
    "coefficient-without-switch": (
        [verl("actor_rollout_ref.actor.kl_loss_coef=0.001"), verl(LOSS, "algorithm.kl_ctrl.kl_coef=0.1")],
        [verl(LOSS, "actor_rollout_ref.actor.kl_loss_coef=0.001"), verl(REWARD, "algorithm.kl_ctrl.kl_coef=0.1")],
    ),
    "two-penalties": ([verl(LOSS, REWARD)], [verl(LOSS), verl(REWARD)]),
    "k1-in-loss": (
        [verl(LOSS, f"{TYPE}=kl"), verl(LOSS, f"{TYPE}=k1"), orlhf("--algo.kl.use_loss"), orlhf("--use_kl_loss")],
        [verl(LOSS, f"{TYPE}=k1+"), orlhf("--algo.kl.use_loss --algo.kl.estimator k2"), orlhf("")],
    ),
    "forward-kl-gradient": (
        [grpo("beta=0.04", version="1.9"), grpo("beta=0.04, use_bias_correction_kl=False"), verl(LOSS), swift(""),
         grpo("beta=0.04, use_bias_correction_kl=True", version="0.25"),
         orlhf("--algo.kl.use_loss --algo.kl.estimator k3"),
         own('[kl]\npenalty = { kind = "in_loss", estimator = "k3", ratio = "none" }\n')],
        [grpo("beta=0.04"), grpo("beta=0.04, use_bias_correction_kl=True", version="0.26"), verl(LOSS, f"{TYPE}=k3+"),
         orlhf("--algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.unbiased_gradient"), swift("--kl_in_reward true"),
         own('[kl]\npenalty = { kind = "in_loss", estimator = "k3" }\n')],
    ),
    "abs-in-loss": ([verl(LOSS, f"{TYPE}=abs")], [verl(LOSS), verl(LOSS, f"{TYPE}=abs+")]),
    "k2-value": (
        [verl(LOSS, f"{TYPE}=mse"), orlhf("--algo.kl.use_loss --algo.kl.estimator k2")],
        [verl(LOSS), orlhf("--algo.kl.estimator k1")],
    ),
    "sampled-in-reward": (
        [verl(REWARD, "algorithm.kl_penalty=low_var_kl"), orlhf("--algo.kl.estimator k3"),
         python("PPOConfig(kl_estimator='k3')", version="1.0")],
        [verl(REWARD), orlhf(""), python("PPOConfig()", version="1.0")],
    ),
    "dead-zone": (
        [verl(LOSS), orlhf("--algo.kl.use_loss --algo.kl.estimator k3"), swift("")],
        [verl(LOSS, f"{TYPE}=k3+"), verl(REWARD), orlhf(""), swift("--kl_in_reward true")],
    ),
    "clamped-charge": ([orlhf("")], [orlhf("--algo.kl.use_loss")]),
    "k3-overflow": ([grpo("beta=0.1")], [grpo(), python("RLOOConfig(beta=0.1)")]),
    "own-token-only": (
        [grpo("beta=0.1"), verl(LOSS), swift(""), orlhf("--algo.kl.use_loss --algo.kl.unbiased_gradient"),
         own('[kl]\npenalty = "in_loss"\n')],
        [python("RLOOConfig()"), verl(REWARD), orlhf(""), own("")],
    ),
    "beta-in-spreads": (
        [grpo("beta=0.1"), verl(LOSS), orlhf("--algo.advantage.estimator group_norm"), swift("")],
        [grpo("beta=0.1, scale_rewards='none'"), grpo("beta=0.1, scale_rewards=False"), verl(REWARD), orlhf(""),
         verl(LOSS, "algorithm.norm_adv_by_std_in_grpo=False")],
    ),
    "sequence-weight": (
        [grpo("beta=0.1, importance_sampling_level='sequence'")],
        [grpo("beta=0.1"), grpo("importance_sampling_level='sequence'"),
         grpo("beta=0.1, importance_sampling_level='sequence', use_bias_correction_kl=False")],
    ),
    "reference-reloaded": (
        [grpo("beta=0.1", before="model = load().merge_and_unload()")],
        [grpo("beta=0.1"), grpo("beta=0.1", before="model = AutoModelForCausalLM.from_pretrained('m')"),
         grpo("beta=0.1", before="model = load()", trainer="peft_config=LoraConfig()"),
         grpo(before="model = load().merge_and_unload()")],
    ),
    "reference-lost": ([grpo("beta=0.1, sync_ref_model=True")], [grpo("beta=0.1"), grpo("sync_ref_model=True")]),
    "sync-refused": (
        [grpo("sync_ref_model=True"), grpo("beta=0.1, sync_ref_model=True", trainer="peft_config=LoraConfig()")],
        [grpo("beta=0.1, sync_ref_model=True")],
    ),
    "filtered-sampling": (
        [grpo("beta=0.1, top_p=0.9"), python("RLOOConfig(top_k=50)"), swift("--top_p 0.9")],
        [grpo("beta=0.1, top_p=1.0"), python("RLOOConfig()"), swift("--top_k -1")],
    ),
    "not-this-kl": ([python("AsyncGRPOConfig()")], [python("GRPOConfig(beta=0.1)")]),
    "padding-in-kl": ([python("OnlineDPOConfig()")], [python("DPOConfig()")]),
    "kto-baseline": (
        [python("KTOConfig()"), factory("stage: kto\n")],
        [python("DPOConfig()"), factory("stage: dpo\n")],
    ),
    "no-kl-in-dpo": (
        [python("DPOConfig()"), factory("stage: dpo\n")],
        [python("KTOConfig()"), factory("stage: ppo\n")],
    ),
    "no-ppo": ([python("PPOConfig()")], [python("PPOConfig()", version="1.9")]),
    "pinned-trl": ([factory("stage: ppo\n")], [factory("stage: dpo\n")]),
    "controller-lost": (
        [verl(REWARD, ADAPT), orlhf("--algo.kl.target 0.1"), factory("stage: ppo\n"),
         python("PPOConfig()", version="0.7")],
        [verl(REWARD), orlhf(""), factory("stage: dpo\n"), python("PPOConfig(adap_kl_ctrl=False)", version="0.7")],
    ),
    "adaptive-elsewhere": (
        [verl(LOSS, ADAPT), orlhf("--algo.kl.target 0.1 --algo.kl.use_loss")],
        [verl(REWARD, ADAPT), orlhf("--algo.kl.target 0.1")],
    ),
    "adaptive-incompatible": ([orlhf("--kl_target 0.1")], [orlhf("")]),
    "adaptive-stuck": (
        [verl(REWARD, ADAPT, "algorithm.kl_ctrl.kl_coef=0"), orlhf("--algo.kl.target 0"),
         orlhf("--algo.kl.target 0.1 --algo.kl.init_coef 0"),
         verl(REWARD, ADAPT, "algorithm.kl_ctrl.horizon=100")],
        [verl(REWARD, ADAPT), orlhf("--algo.kl.target 0.1")],
    ),
    "adaptive-slow": (
        [verl(REWARD, *OLD_BATCH.split()), factory("stage: ppo\n"), orlhf("--algo.kl.target 0.1")],
        [verl(REWARD, ADAPT, "algorithm.kl_ctrl.horizon=3000"), verl(LOSS)],
    ),
    "full-raises": ([verl(LOSS, f"{TYPE}=full"), verl(REWARD, "algorithm.kl_penalty=full")], [verl(LOSS)]),
    "lora-reference-is-base": (
        [verl(LOSS, LORA, "actor_rollout_ref.model.lora_adapter_path=a")],
        [verl(LOSS, LORA), verl(LORA, "actor_rollout_ref.model.lora_adapter_path=a")],
    ),
    "not-baselined": ([orlhf("--algo.advantage.estimator rloo")], [orlhf(""), verl(REWARD)]),
    "real-crashes": (
        [swift("--loss_type real --kl_in_reward true")],
        [swift("--loss_type real"), swift("--kl_in_reward true")],
    ),
    "no-reference-loss": (
        [python("ORPOConfig()"), python("CPOConfig()"), factory("stage: dpo\npref_loss: simpo\n")],
        [python("DPOConfig()"), factory("stage: dpo\npref_loss: ipo\n")],
    ),
    "target-per-sequence": ([factory("stage: ppo\n")], [factory("stage: dpo\n")]),
    "target-per-token": ([verl(REWARD, ADAPT), orlhf("--algo.kl.target 0.1")], [verl(REWARD), factory("stage: ppo\n")]),
}  # fmt: skip


def traps(config: Config, folder: Path) -> set[str]:
    path = folder / config.name
    path.write_text(config.text)
    return {trap.name for one in check(path, **config.options) for trap in one.traps}


def test_every_trap_is_tried() -> None:
    assert CASES.keys() == TRAPS.keys()


@pytest.mark.parametrize("name", TRAPS)
def test_a_config_that_falls_into_it(name: str, tmp_path: Path) -> None:
    for config in CASES[name][0]:
        assert name in traps(config, tmp_path), config.text


@pytest.mark.parametrize("name", TRAPS)
def test_a_config_next_to_it_does_not(name: str, tmp_path: Path) -> None:
    for config in CASES[name][1]:
        assert name not in traps(config, tmp_path), config.text
