"""The keys of verl, OpenRLHF, NeMo-RL, prime-rl, slime and ms-swift. Sources: their loggers and trainers, 2026."""

from typing import Any

import numpy as np

from kleash.records import Estimator
from kleash.runlog.importers import trl
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary

_SIZE = "size of an update, not drift: it stays small while the policy runs away"
_OWN_TOKEN = "its gradient sees a token's own KL alone, no future one"

#: verl's kl_loss_type and kl_penalty → estimator, gradient in the loss.
VERL_TYPES: dict[str, tuple[Estimator | None, str]] = {
    "kl": ("k1", "k1 in the loss has no gradient on average: as a penalty it does nothing"),
    "k1": ("k1", "k1 in the loss has no gradient on average: as a penalty it does nothing"),
    "abs": (None, "mean |log-ratio|: neither its value nor its gradient is a KL's"),
    "mse": ("k2", f"k2: {_OWN_TOKEN}; the value is biased where the KL is large"),
    "k2": ("k2", f"k2: {_OWN_TOKEN}; the value is biased where the KL is large"),
    "low_var_kl": ("k3", "k3 in the loss descends the forward KL, not the reverse; past the clamp it does not pull"),
    "k3": ("k3", "k3 in the loss descends the forward KL, not the reverse; past the clamp it does not pull"),
    "k3+": ("k3", f"k3 with the gradient of k2: {_OWN_TOKEN}"),
}


def _verl_as_set(vocabulary: Vocabulary, raw: Raw) -> Vocabulary:
    """Estimators by the run's config, where the log tells it; else those of verl's defaults."""
    loss, reward = told(raw.config, "kl_loss_type"), told(raw.config, "kl_penalty")
    series = []
    for one in vocabulary.kl:
        if one.key == "actor/kl_loss" and loss in VERL_TYPES:
            estimator, note = VERL_TYPES[loss]
            one = one.but(estimator=estimator, note=note, clamp=10.0 if estimator == "k3" else None)
        if one.meaning == "kl_ref" and one.key != "actor/kl_loss" and reward in VERL_TYPES:
            one = one.but(estimator=VERL_TYPES[reward][0], clamp=10.0 if VERL_TYPES[reward][0] == "k3" else None)
        series.append(one)
    return vocabulary.but(kl=tuple(series))


def told(config: dict[str, Any], name: str) -> str | None:
    """A setting by its last name, at any depth."""
    if isinstance(config.get(name), str):
        return config[name]
    inner = (told(value, name) for value in config.values() if isinstance(value, dict))
    return next((found for found in inner if found is not None), None)


_IN_REWARD = KLSeries(
    key="actor/reward_kl_penalty",
    meaning="kl_ref",
    estimator="k1",
    unit="nats/token",
    note="charged in the reward; mean over sequences of their mean per token, so that short ones count as much",
)
VERL = Vocabulary(
    trainer="verl",
    method="",
    signs=(("critic/score/mean",), ("actor/pg_loss",)),
    columns={
        "critic/score/mean": "reward",
        "actor/kl_coef": "beta",
        "actor/reward_kl_penalty_coeff": "beta",
        "critic/kl_coeff": "beta",
        "actor/entropy": "entropy",
        "actor/entropy_loss": "entropy",
        "response_length/mean": "length",
        "response_length/clip_ratio": "truncated",
        "actor/pg_clipfrac": "clip_fraction",
        "actor/grad_norm": "grad_norm",
        "actor/pg_loss": "loss",
        "actor/lr": "learning_rate",
        "critic/vf_explained_var": "explained_variance",
        "rollout_corr/rollout_is_max": "importance_max",
    },
    families=((r"val-core/(.+)(?<!/std)", "held_out/{}"), (r"val/test_score/(.+)", "held_out/{}")),
    kl=(
        KLSeries(
            key="actor/kl_loss",
            meaning="kl_ref",
            estimator="k3",
            unit="nats/token",
            clamp=10.0,
            note=f"as kl_loss_type is by default: {VERL_TYPES['low_var_kl'][1]}",
        ),
        _IN_REWARD,
        _IN_REWARD.but(key="critic/kl"),
        KLSeries(key="actor/ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=_SIZE),
        KLSeries(
            key="rollout_corr/k3_kl",
            meaning="kl_sampler",
            estimator="k3",
            unit="nats/token",
            note="sampler against trainer; far over 0.001 they are different policies",
        ),
        KLSeries(
            key="rollout_corr/kl",
            meaning="kl_sampler",
            estimator="k1",
            unit="nats/token",
            note="sampler against trainer, signed",
        ),
        KLSeries(
            key="training/rollout_probs_diff_mean",
            meaning="kl_sampler",
            estimator=None,
            unit=None,
            note="mean |probability of the sampler − of the trainer|: no KL",
        ),
    ),
    absent="verl measures a KL only with use_kl_loss or use_kl_in_reward, and both are off by default",
    adapt=_verl_as_set,
)


def _openrlhf_as_logged(vocabulary: Vocabulary, raw: Raw) -> Vocabulary:
    """The estimator shows: k1 is `logprobs_diff` itself, k2 and k3 are not."""
    there = {key.removeprefix("train/"): key for key in raw.table.keys}
    if "kl" not in there or "logprobs_diff" not in there:
        return vocabulary
    axis = raw.table.axis([there["kl"], there["logprobs_diff"]])
    kl, difference = (raw.table.column(there[name], axis) for name in ("kl", "logprobs_diff"))
    if not np.any(kl[np.isfinite(kl)]):
        return vocabulary
    is_k1 = bool(np.allclose(kl, difference, rtol=1e-3, atol=1e-6, equal_nan=True))
    return vocabulary.but(
        kl=tuple(one.but(estimator="k1") if one.key == "kl" and is_k1 else one for one in vocabulary.kl)
    )


OPENRLHF = Vocabulary(
    trainer="OpenRLHF",
    method="",
    signs=(("return", "ppo_clip_ratio"), ("policy_loss", "response_length", "total_length")),
    columns={
        "reward": "reward",
        "rollout/reward_mean": "reward",
        "rollout/reward_std": "reward_std",
        "response_length": "length",
        "rollout/response_length_mean": "length",
        "rollout/truncated_rate": "truncated",
        "entropy_loss": "entropy",
        "ppo_clip_ratio": "clip_fraction",
        "actor_grad_norm": "grad_norm",
        "policy_loss": "loss",
        "actor_lr": "learning_rate",
    },
    families=((r"eval/eval_(.+_pass\d+)", "held_out/{}"),),
    kl=(
        KLSeries(
            key="kl",
            meaning="kl_ref",
            estimator=None,
            unit="nats/token",
            clamp=10.0,
            zero_is_absent=True,
            note="each token cut to ±10; k1 (the default) has no gradient on average if used as a loss, k3 without "
            "unbiased_gradient descends the forward KL; 0 where there is no reference",
        ),
        KLSeries(
            key="logprobs_diff",
            meaning="kl_ref",
            estimator="k1",
            unit="nats/token",
            zero_is_absent=True,
            note="log-prob of the policy − of the reference, not cut: where it exceeds `kl`, the cut hides drift",
        ),
        KLSeries(key="ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=_SIZE),
        KLSeries(
            key="vllm_kl", meaning="kl_sampler", estimator="k1", unit="nats/token", note="vLLM against the trainer"
        ),
    ),
    absent="this log has no `kl`",
    adapt=_openrlhf_as_logged,
)
NEMO_RL = Vocabulary(
    trainer="NeMo-RL",
    method="",
    signs=(("token_mult_prob_error",),),
    columns={
        "reward": "reward",
        "approx_entropy": "entropy",
        "mean_gen_tokens_per_sample": "length",
        "truncation_rate": "truncated",
        "grad_norm": "grad_norm",
        "loss": "loss",
        "lr": "learning_rate",
        "probs_ratio_max": "importance_max",
    },
    families=((r"validation/(accuracy|pass_k.*)", "held_out/{}"),),
    kl=(
        KLSeries(
            key="kl_penalty",
            meaning="kl_ref",
            estimator=None,
            unit="nats/token",
            clamp=10.0,
            zero_is_absent=True,
            note="reference_policy_kl_type decides: k1 and k3 have the right gradient, k2 with its weights has not; "
            "per sequence where token_level_loss is off; 0 where reference_policy_kl_penalty is 0",
        ),
        KLSeries(
            key="gen_kl_error",
            meaning="kl_sampler",
            estimator="k3",
            unit="nats/token",
            note="generation against training; the guide asks for less than 0.001",
        ),
        KLSeries(
            key="policy_kl_error",
            meaning="kl_sampler",
            estimator="k3",
            unit="nats/token",
            note="training against generation, the other direction",
        ),
        KLSeries(
            key="js_divergence_error",
            meaning="kl_sampler",
            estimator=None,
            unit="nats/token",
            note="Jensen–Shannon divergence of generation and training: no KL, at most 0.69",
        ),
    ),
    absent="this log has no `kl_penalty`",
)
PRIME_RL = Vocabulary(
    trainer="prime-rl",
    method="",
    signs=(("mismatch_kl/all/mean",), ("mismatch_kl/mean",), ("agg/all/reward/mean",)),
    columns={
        "agg/all/reward/mean": "reward",
        "reward/all/mean": "reward",
        "reward/mean": "reward",
        "entropy/all/mean": "entropy",
        "entropy/mean": "entropy",
        "agg/all/num_output_tokens/mean": "length",
        "decode_len/all/mean": "length",
        "agg/all/is_truncated/mean": "truncated",
        "is_truncated/all/mean": "truncated",
        "is_truncated/mean": "truncated",
        "optim/grad_norm": "grad_norm",
        "loss/mean": "loss",
        "optim/lr": "learning_rate",
    },
    families=((r"eval/(.+)/(avg@\d+)", "held_out/{}/{}"),),
    kl=(
        KLSeries(
            key="mismatch_kl/all/mean",
            meaning="kl_sampler",
            estimator="k3",
            unit="nats/token",
            note="sampler against trainer, not drift: it starts anew with every weight update",
        ),
        KLSeries(
            key="mismatch_kl/mean",
            meaning="kl_sampler",
            estimator="k3",
            unit="nats/token",
            note="sampler against trainer, not drift: it starts anew with every weight update",
        ),
    ),
    absent="prime-rl measures no KL to a reference; its `mismatch_kl` is that of sampler and trainer",
)
SLIME = Vocabulary(
    trainer="slime",
    method="",
    signs=(("rollout/raw_reward",),),
    columns={
        "rollout/raw_reward": "reward",
        "entropy_loss": "entropy",
        "rollout/response_lengths": "length",
        "rollout/response_len/mean": "length",
        "rollout/truncated_ratio": "truncated",
        "pg_clipfrac": "clip_fraction",
        "grad_norm": "grad_norm",
        "loss": "loss",
        "lr-pg_0": "learning_rate",
    },
    families=((r"eval/((?!step$)[^/]+)(?<!-truncated_ratio)", "held_out/{}"),),
    kl=(
        KLSeries(
            key="kl_loss",
            meaning="kl_ref",
            estimator=None,
            unit="nats/token",
            note="mean over samples of their mean per token; kl_loss_type decides: its default k1 has no gradient on "
            "average, so that the penalty does nothing; low_var_kl descends the forward KL",
        ),
        KLSeries(
            key="rollout/log_probs",
            minus="rollout/ref_log_probs",
            meaning="kl_ref",
            estimator="k1",
            unit="nats/token",
            note="log-prob of the policy − of the reference, from the rollout's means",
        ),
        KLSeries(key="ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=_SIZE),
        KLSeries(
            key="train_rollout_logprob_abs_diff",
            meaning="kl_sampler",
            estimator=None,
            unit="nats/token",
            note="mean |log-prob of the trainer − of the sampler|: no KL, but as large as their mismatch",
        ),
    ),
    absent="slime measures a KL only with --use-kl-loss or a loaded reference",
)
MS_SWIFT = trl.GRPO.but(
    trainer="ms-swift",
    signs=(("global_step/max_steps", "reward"), ("global_step/max_steps", "completions/mean_length")),
    columns={**trl.GRPO.columns, "entropy/mean": "entropy"},
    absent="ms-swift logs `kl` only where beta is not 0",
)
