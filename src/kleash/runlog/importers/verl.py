"""verl's keys. Sources: verl/trainer/ppo/metric_utils.py, core_algos.py and ray_trainer.py of 0.9.1, and older ones."""

from typing import Any

from kleash.records import Estimator
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary

SIZE = "size of an update, not drift: it stays small while the policy runs away"
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
}
for _name in ("kl", "k1", "low_var_kl", "k3"):  # "+": the value of one, the gradient of k2
    VERL_TYPES[f"{_name}+"] = (VERL_TYPES[_name][0], f"with the gradient of k2: {_OWN_TOKEN}")


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
        KLSeries(key="actor/ppo_kl", meaning="kl_old", estimator="k1", unit="nats/token", note=SIZE),
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
