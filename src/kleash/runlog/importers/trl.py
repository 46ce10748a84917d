"""TRL's keys, from PPO of version 0.7 to GRPO of 1.16. Sources: TRL's trainers at the tags v0.7 … v1.16."""

from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary

_COMMON = {
    "reward": "reward",
    "reward_std": "reward_std",
    "frac_reward_zero_std": "groups_without_spread",
    "entropy": "entropy",
    "completions/mean_length": "length",
    "completion_length": "length",
    "completions/clipped_ratio": "truncated",
    "clip_ratio/region_mean": "clip_fraction",
    "clip_ratio": "clip_fraction",
    "cispo_clip_ratio": "clip_fraction",
    "grad_norm": "grad_norm",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "sampling/importance_sampling_ratio/max": "importance_max",
    "eval/reward": "held_out/reward",
}
_REWARDS = (
    (r"rewards/(.+)/mean", "reward/{}"),
    (r"eval/rewards/(.+)/mean", "held_out/{}"),
)
_SAMPLER = KLSeries(
    key="sampling/sampling_logp_difference/mean",
    meaning="kl_sampler",
    estimator=None,
    unit="nats/token",
    note="mean |log-prob of the trainer − log-prob of the sampler|: no KL, which is about half the mean square of it",
)
_K3 = "k3 of the penalty in the loss: its gradient sees a token's own KL alone, no future one"
_CORRECTED = f"{_K3}; times the importance ratio, so that it descends the reverse KL"
_FORWARD = (
    f"{_K3}; without use_bias_correction_kl it descends the forward KL(reference‖policy), which is not what the value "
    "measures"
)


def _grpo_as_set(vocabulary: Vocabulary, raw: Raw) -> Vocabulary:
    """Estimator and note of `kl` by the run's arguments, where a checkpoint tells them."""
    corrected = raw.config.get("use_bias_correction_kl")
    note = _CORRECTED if corrected else _FORWARD if corrected is False else _K3
    series = tuple(one.but(note=note) if one.key == "kl" else one for one in vocabulary.kl)
    absent = (
        "beta = 0: TRL loads no reference, and measures no KL" if raw.config.get("beta") == 0 else vocabulary.absent
    )
    return vocabulary.but(kl=series, absent=absent)


GRPO = Vocabulary(
    trainer="TRL",
    method="GRPO",
    signs=(
        ("frac_reward_zero_std",),
        ("completions/mean_length", "reward"),
        ("completion_length", "reward_std"),
    ),
    columns=_COMMON,
    families=_REWARDS,
    kl=(KLSeries(key="kl", meaning="kl_ref", estimator="k3", unit="nats/token", note=_K3), _SAMPLER),
    absent="TRL's GRPO logs `kl` only where beta is not 0, and beta is 0 by default since version 0.19",
    averages=True,
    strength="beta",
    adapt=_grpo_as_set,
)
OLD_GRPO = GRPO.but(
    method="GRPO (0.16 or older)",
    signs=(("completion_length", "reward_std"),),
    families=((r"rewards/([^/]+)", "reward/{}"), (r"eval/rewards/([^/]+)", "held_out/{}")),
    absent="TRL's GRPO logs `kl` only where beta is not 0",
)
ASYNC_GRPO = GRPO.but(
    method="AsyncGRPO",
    signs=(("ratio", "kl", "clip_ratio/region_mean"),),
    kl=(
        KLSeries(
            key="kl",
            meaning="kl_sampler",
            estimator=None,
            unit="nats/token",
            note="AsyncGRPO's `kl` is that of sampler and trainer; it has no reference",
        ),
    ),
    absent="TRL's AsyncGRPO has no reference; its `kl` is that of sampler and trainer",
)
RLOO = GRPO.but(
    method="RLOO",
    signs=(("kleash: said by the arguments",),),
    kl=(
        KLSeries(
            key="kl",
            meaning="kl_ref",
            estimator="k1",
            unit="nats/token",
            note="k1, charged in the reward as the sum over the sequence: it may be below 0, and beta is per sequence",
        ),
    ),
    absent="TRL's RLOO logs `kl` only where beta is not 0",
    adapt=lambda vocabulary, raw: vocabulary,
)
PPO = Vocabulary(
    trainer="TRL",
    method="PPO",
    signs=(("objective/rlhf_reward",),),
    columns={
        "objective/scores": "reward",
        "policy/entropy_avg": "entropy",
        "policy/clipfrac_avg": "clip_fraction",
        "loss/policy_avg": "loss",
        "lr": "learning_rate",
        "learning_rate": "learning_rate",
        "beta": "beta",
        "grad_norm": "grad_norm",
    },
    kl=(
        KLSeries(
            key="objective/kl",
            meaning="kl_ref",
            estimator="k1",
            unit="nats/sequence",
            note="the sum over the sequence, charged in the reward; single digits are healthy, below 0 is an artefact",
        ),
        KLSeries(
            key="policy/approxkl_avg",
            meaning="kl_old",
            estimator="k2",
            unit="nats/token",
            note="size of the last updates, not drift: it stays small while the policy runs away",
        ),
    ),
    absent="this log has no `objective/kl`",
    strength="kl_coef",
    adapt=lambda vocabulary, raw: _ppo_as_set(vocabulary, raw),
)
ONLINE_DPO = PPO.but(
    method="Online DPO",
    signs=(("objective/scores_margin", "objective/kl"),),
    columns={**PPO.columns, "rewards/margins": "margin", "rewards/accuracies": "accuracy", "loss": "loss"},
    kl=(
        PPO.kl[0].but(note="summed over padding too (TRL issue 6803): it grows with the batch's longest answer"),
        PPO.kl[1],
    ),
    averages=True,
)
LEGACY_PPO = Vocabulary(
    trainer="TRL",
    method="PPO (0.11 or older)",
    signs=(("ppo/mean_scores",), ("objective/kl_coef", "objective/kl")),
    columns={
        "ppo/mean_scores": "reward",
        "ppo/std_scores": "reward_std",
        "objective/kl_coef": "beta",
        "ppo/policy/entropy": "entropy",
        "ppo/policy/clipfrac": "clip_fraction",
        "ppo/loss/total": "loss",
        "ppo/learning_rate": "learning_rate",
        "ppo/val/var_explained": "explained_variance",
        "tokens/responses_len_mean": "length",
    },
    kl=(
        KLSeries(
            key="objective/kl",
            meaning="kl_ref",
            estimator="k1",
            unit="nats/sequence",
            note="the sum over the sequence; below 0 the samples are not the policy's own (generation settings)",
        ),
        KLSeries(
            key="ppo/policy/approxkl",
            meaning="kl_old",
            estimator="k2",
            unit="nats/token",
            note="size of the last updates, not drift",
        ),
    ),
)
_PAIRS = {
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "loss": "loss",
    "learning_rate": "learning_rate",
    "eval/rewards/accuracies": "held_out/accuracy",
}
DPO = Vocabulary(
    trainer="TRL",
    method="DPO",
    signs=(("rewards/margins",),),
    columns=_PAIRS,
    absent="DPO measures no KL; its loss holds log-ratios on given answers, not on the policy's own",
    averages=True,
)
KTO = DPO.but(
    method="KTO",
    signs=(("rewards/margins", "kl"),),
    kl=(
        KLSeries(
            key="kl",
            meaning="kl_kto",
            estimator="k1",
            unit="nats/sequence",
            note="KTO's baseline, from mismatched pairs and cut at 0: not the KL of what the policy writes",
        ),
    ),
    absent="KTO's `kl` is the baseline of its loss; it measures no KL of what the policy writes",
)
REWARD = Vocabulary(
    trainer="TRL",
    method="Reward",
    signs=(("min_reward", "max_reward", "margin"),),
    columns={
        "mean_reward": "reward",
        "margin": "margin",
        "accuracy": "accuracy",
        "grad_norm": "grad_norm",
        "loss": "loss",
        "learning_rate": "learning_rate",
        "eval/accuracy": "held_out/accuracy",
    },
    absent="a reward model has no KL",
    averages=True,
)
SFT = Vocabulary(
    trainer="TRL",
    method="SFT",
    signs=(("mean_token_accuracy",),),
    columns={
        "loss": "loss",
        "entropy": "entropy",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "mean_token_accuracy": "accuracy",
    },
    absent="SFT measures no KL",
    averages=True,
)


def _ppo_as_set(vocabulary: Vocabulary, raw: Raw) -> Vocabulary:
    estimator = raw.config.get("kl_estimator")
    if estimator not in ("k1", "k3"):
        return vocabulary
    return vocabulary.but(kl=(vocabulary.kl[0].but(estimator=estimator), *vocabulary.kl[1:]))


def by_arguments(kind: str | None) -> tuple[Vocabulary, ...]:
    """The order to try TRL's vocabularies in. kind: class of the run's arguments ("RLOOConfig"), where it is known."""
    known = {"RLOOConfig": RLOO, "AsyncGRPOConfig": ASYNC_GRPO}.get(kind or "")
    others = (LEGACY_PPO, ONLINE_DPO, PPO, KTO, DPO, ASYNC_GRPO, OLD_GRPO, GRPO, REWARD, SFT)
    return others if known is None else (known.but(signs=GRPO.signs), *others)
