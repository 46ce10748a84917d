"""The keys of OpenRLHF, NeMo-RL, prime-rl, slime and ms-swift. Sources: their loggers and trainers, 2026."""

import numpy as np

from kleash.runlog.importers import trl
from kleash.runlog.importers.verl import SIZE
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary


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
        KLSeries(key="ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=SIZE),
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
        KLSeries(key="ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=SIZE),
        KLSeries(
            key="train_rollout_logprob_abs_diff",
            meaning="kl_sampler",
            estimator=None,
            unit="nats/token",
            note="mean |log-prob of the trainer − of the sampler|: no KL, which is about half the mean square of it",
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
