"""`kleash dpo`: the gradient is the paper's, resumed is never stopped, the KL is that of the policy's own words."""

import math
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import kill
from safetensors.torch import load_file
from tests.tabular import enumerate_sequences
from tests.tolerances import EXACT, FP32, LOOP, PATHS_GRADIENT
from tests.training.enumerated import EOS, T, V, small_policy, small_tokenizer
from tests.training.pair_runs import judged, plain, rows, settings, steps
from torch.nn.functional import logsigmoid

from kleash.algorithms.preference import DPO, KTO, LOSSES
from kleash.beta import PI, Constant
from kleash.errors import UsageError
from kleash.models.answers import Encoded
from kleash.models.frozen import Frozen
from kleash.models.load import load
from kleash.models.plan import Plan
from kleash.models.spec import ModelSpec
from kleash.models.stopping import Ends
from kleash.rl.kto import mismatched
from kleash.runlog import Notice, ReferenceChange
from kleash.training.data import indices
from kleash.training.offline.displacement import Change, change, displaced
from kleash.training.offline.dpo import Leash, Preferring, Watched
from kleash.training.offline.dpo_setup import build_dpo
from kleash.training.offline.own_words import OwnWords
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.start import run_offline

BETA = 0.3
PAIRS = Encoded(
    prompts=[[3, 0], [4], [1, 3, 3, 0]],
    answers=[[[1, 3, EOS], [4, EOS]], [[0, 0, 1], [3, 1, EOS]], [[EOS], [1, 1, 1]]],
    ended=[[True, True], [False, True], [True, False]],
    pad_id=EOS,
    apart=0,
)
PROMPTS = [[a, b] for a in range(V) for b in range(V)]
PLANS = [Plan("packed"), Plan("packed", groups=1), Plan("cached"), Plan("plain", rows=1), Plan("two_stage", groups=2)]


def preferring(policy: Any, reference: Any, pairs: Encoded = PAIRS, **changes: Any) -> Preferring:
    frozen = Frozen(reference, {"weights": "0"})
    words = OwnWords(
        policy=policy, reference=frozen, tokenizer=small_tokenizer(), ends=Ends((EOS,), EOS, None),
        prompts=[str(ids) for ids in PROMPTS], ids=PROMPTS, samples=16, length=T, seed=0, rows=64, group_size=2,
    )  # fmt: skip
    settings: dict[str, Any] = {
        "policy": policy, "reference": frozen, "pairs": pairs, "loss": DPO(beta=BETA), "batch_size": len(pairs),
        "seed": 0, "leash": Leash(law=Constant(), target=None, budget=None), "words": words,
        "watched": Watched(pairs=pairs, prompt=torch.arange(len(pairs)), held_out=True),
    }  # fmt: skip
    return Preferring(**settings | changes)


def at(plan: Plan) -> Any:
    return lambda work: work(plan)


# ── the gradient ────────────────────────────────────────────────────────────────────────────────────────


def logprob(policy: Any, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Σ log π of an answer by the transformers model itself, the row alone."""
    logits = policy.model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
    return torch.stack([logits[len(prompt) - 1 + t, token] for t, token in enumerate(answer)]).sum()


def slow(policy: Any, reference: Any) -> torch.Tensor:
    """The mean over pairs of −log σ(β (log-ratio of the chosen − log-ratio of the rejected))."""
    losses = []
    for prompt, (chosen, rejected) in zip(PAIRS.prompts, PAIRS.answers, strict=True):
        with torch.no_grad():
            ref = logprob(reference, prompt, chosen) - logprob(reference, prompt, rejected)
        margin = logprob(policy, prompt, chosen) - logprob(policy, prompt, rejected) - ref
        losses.append(-logsigmoid(BETA * margin))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_the_gradient_is_that_of_the_formula(plan, lora):
    policy, reference = small_policy(0, lora=lora), small_policy(1)
    objective = preferring(policy, reference)
    taught = objective.learn(0, objective.begin(), at(plan))
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    truth = slow(policy, reference)
    truth.backward()
    assert abs(taught.loss - float(truth)) < LOOP
    assert len(found) > 2
    for name, grad in found.items():
        expected = dict(policy.named_parameters())[name].grad
        assert expected is not None
        assert torch.allclose(grad, expected, rtol=0, atol=LOOP), name


def test_the_figures_are_those_of_single_rows():
    policy, reference = small_policy(0), small_policy(1)
    objective = preferring(policy, reference)
    figures = objective.learn(0, objective.begin(), at(Plan())).figures
    with torch.no_grad():
        sides = [
            [[float(logprob(model, prompt, ids)) for ids in both] for prompt, both in
             zip(PAIRS.prompts, PAIRS.answers, strict=True)] for model in (policy, reference)
        ]  # fmt: skip
    log_pi, log_ref = torch.tensor(sides, dtype=torch.float64)
    ratio = log_pi - log_ref
    truth = {
        "logprob_chosen": log_pi[:, 0].mean(),
        "logprob_rejected": log_pi[:, 1].mean(),
        "log_ratio_chosen": ratio[:, 0].mean(),
        "log_ratio_rejected": ratio[:, 1].mean(),
        "reward_margin": BETA * (ratio[:, 0] - ratio[:, 1]).mean(),
        "accuracy": (ratio[:, 0] > ratio[:, 1]).double().mean(),
        "beta": BETA,
        "pairs": 3,
        "tokens": 15,
    }
    for name, value in truth.items():
        assert abs(figures[name] - float(value)) < LOOP, name
    assert figures["kl_text"] > 0


def test_the_order_of_pairs_changes_nothing():
    policy, reference = small_policy(0), small_policy(1)
    turned = replace(PAIRS, prompts=PAIRS.prompts[::-1], answers=PAIRS.answers[::-1], ended=PAIRS.ended[::-1])
    grads = []
    for pairs in (PAIRS, turned):
        objective = preferring(policy, reference, pairs)
        objective.learn(0, objective.begin(), at(Plan()))
        grads.append(torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None]))
        policy.zero_grad()
    assert torch.allclose(*grads, rtol=0, atol=EXACT)


# ── the KL on its own words ─────────────────────────────────────────────────────────────────────────────


def test_the_kl_is_that_of_the_sequences_enumerated():
    """Within four standard errors of Σ π log(π/ref) over all sequences, mean over prompts; by any passes the same."""
    policy, reference = small_policy(0), small_policy(1)
    space = enumerate_sequences(V, T, eos=EOS)
    kls, lengths = [], []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = torch.cat([torch.tensor(prompt).expand(len(space.ids), -1), space.ids[:, :-1]], 1)
            sums = []
            for model in (policy, reference):
                logits = model.model(ids).logits[:, len(prompt) - 1 :].log_softmax(-1)
                sums.append((logits.gather(-1, space.ids[..., None])[..., 0] * space.mask).sum(1))
            kls.append(float((sums[0].exp() * (sums[0] - sums[1])).sum()))
            lengths.append(float((sums[0].exp() * space.mask.sum(1)).sum()))
    words = preferring(policy, reference).words
    heard = words.measure(0, at(Plan()))
    reading = heard.readings["kl_ref"]
    assert reading.n_sequences == 16 * V * V
    assert reading.standard_error is not None
    assert abs(reading.value - sum(kls) / len(kls)) < 4 * reading.standard_error
    assert abs(heard.length - sum(lengths) / len(lengths)) < 0.1
    again = words.measure(5, at(Plan("plain", groups=3))).readings["kl_ref"]
    assert abs(again.value - reading.value) < LOOP
    assert replace(words, reference=Frozen(policy, {})).measure(0, at(Plan())).readings["kl_ref"].value == 0.0


# ── likelihood displacement ─────────────────────────────────────────────────────────────────────────────


def test_displacement_is_a_fall_of_the_chosen_while_the_margin_rises():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    first, prompt = -50 + 10 * torch.randn(40, 2, generator=generator, dtype=torch.float64), torch.arange(40)
    good, each = torch.tensor([True, False]).repeat(40), prompt.repeat_interleave(2)

    def changed(by: torch.Tensor, prompt: torch.Tensor = each) -> Change:
        return change(first.flatten(), (first + by).flatten(), good, prompt)

    fell = changed(noise + torch.tensor([-3.0, -9.0]))
    gap = noise[:, 0] - noise[:, 1]
    assert fell.chosen is not None
    assert fell.margin_error is not None
    assert abs(fell.margin_error - float(gap.std()) / math.sqrt(40)) < EXACT
    assert abs(fell.chosen - (-3 + float(noise[:, 0].mean()))) < EXACT
    assert fell.chosen_error is not None
    assert abs(fell.chosen_error - float(noise[:, 0].std()) / math.sqrt(40)) < EXACT
    text = displaced(fell)
    assert text is not None
    assert f"{-fell.chosen:.3g} ±" in text
    assert displaced(changed(noise + torch.tensor([3.0, -9.0]))) is None, "it rose"
    assert displaced(changed(noise + torch.tensor([-3.0, -3.0]))) is None, "no margin"
    assert displaced(changed(noise)) is None, "noise"
    assert displaced(changed(noise - 9, torch.zeros(80, dtype=torch.long))) is None, "one prompt has no error"


def test_displacement_is_said_once(tmp_path):
    """On held-out pairs of odd words alone, which training pushes away: the longer, rejected side falls more."""
    odd = [{"prompt": f"t{3 + i}", "chosen": " t5", "rejected": " t7 t9 t11 t5"} for i in range(8)]
    run = run_offline(settings(tmp_path, train__learning_rate=3e-2), partial(build_dpo, held_out=odd))
    fell = [e for e in judged(run) if e.chosen_change < -3 * (e.chosen_change_error or 0)]
    said = [e for e in run.events if isinstance(e, Notice) and e.what == "likelihood_displacement"]
    assert len(fell) > 1
    assert len(said) == 1
    assert said[0].step == min(e.step for e in fell if e.margin_change > 3 * e.margin_change_error)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────

VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"model__adapter": {"rank": 2}},
    "target": {"kl__target": "0.5 nats/sequence", "train__evaluate_every": 1},
    "cached": {"kl__cache": True},
    "ema": {"model__reference_update": {"kind": "ema", "rate": 0.5}},
    "reset": {"model__reference_update": {"kind": "reset", "every": 2}},
    "beta_dpo": {"loss__kind": "beta_dpo"},
    "kto": {"loss__kind": "kto", "loss__baseline": "on_policy"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resumed_is_never_stopped(tmp_path, variant, monkeypatch):
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    changes = VARIANTS[variant]
    whole = run_offline(settings(tmp_path, out=str(tmp_path / "whole"), train__keep="all", **changes), build_dpo)
    config, learn = settings(tmp_path, train__keep="all", **changes), Preferring.learn

    def dies(self: Preferring, step: int, *rest: Any) -> Any:
        if step == 5:
            raise ZeroDivisionError("killed")
        return learn(self, step, *rest)

    monkeypatch.setattr(Preferring, "learn", dies)
    with pytest.raises(ZeroDivisionError):
        run_offline(config, build_dpo)
    monkeypatch.setattr(Preferring, "learn", learn)
    run = run_offline(config, build_dpo, resume=True)
    assert run.finished
    assert plain(run) == plain(whole)
    assert judged(run) == judged(whole)
    ends = [dict(load(ModelSpec(policy=str(r.checkpoints[-1].path))).policy.named_parameters()) for r in (run, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    names = [{saved.path.name for saved in r.checkpoints} for r in (run, whole)]
    assert names[0] == names[1] | {"step-000005"}, "the one that was saved when it died"
    if variant == "target":
        betas = [e.beta for e in judged(run)]
        assert len(set(betas)) > 3
        assert [step.beta for step in steps(run)] == betas[:-1]


@pytest.mark.slow
def test_killed_inside_a_step_and_a_checkpoint(tmp_path):
    config = settings(tmp_path)
    path, run = tmp_path / "run.toml", tmp_path / "run"
    path.write_text(
        f'out = "{run}"\nmodel.policy = "{config.model.policy}"\ndata.pairs = "{config.data.pairs}"\n'
        f'data.held_out = "{config.data.held_out}"\nkl.prompts = 4\n'
        "train = { epochs = 6, batch_size = 4, learning_rate = 1e-2, checkpoint_every = 3, keep = 1 }\n"
    )
    subprocess.run(kill.command(path, f"out={tmp_path / 'whole'}", verb="dpo"), check=True, capture_output=True)
    for i, moment in enumerate([kill.Kill(how="step", records=4, delay=0.01), kill.Kill(how="write", delay=0.002)]):
        kill.killed(kill.command(path, *["--resume"][: i != 0], verb="dpo"), run, moment, tmp_path / "console.txt")
    subprocess.run(kill.command(path, "--resume", verb="dpo"), check=True, capture_output=True)
    runs = [OfflineRun(tmp_path / name) for name in ("whole", "run")]
    assert plain(runs[0]) == plain(runs[1])
    assert judged(runs[0]) == judged(runs[1])


def test_groups_at_a_time_change_nothing_but_rounding(tmp_path):
    runs = [
        run_offline(settings(tmp_path, out=str(tmp_path / f"run{n}"), train__groups_per_pass=n, train__steps=3,
                             train__epochs=None), build_dpo)
        for n in (None, 1)
    ]  # fmt: skip
    losses = [[step.loss for step in steps(run)] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=FP32)


def test_what_is_kept_on_disk_is_what_is_computed(tmp_path, monkeypatch):
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    live = run_offline(settings(tmp_path, out=str(tmp_path / "live")), build_dpo)
    config = settings(tmp_path, out=str(tmp_path / "cached"), kl__cache=True)
    first = run_offline(config, build_dpo)
    (file,) = (tmp_path / "cache" / "reference-logprobs").iterdir()
    second = run_offline(replace(config, out=str(tmp_path / "again")), build_dpo)
    assert plain(first) == plain(second)
    for name in ("loss", "log_ratio_chosen", "reward_margin", "grad_norm"):
        values = [[getattr(step, name) for step in steps(run)] for run in (live, first)]
        assert values[0] == pytest.approx(values[1], rel=PATHS_GRADIENT, abs=PATHS_GRADIENT), name
    assert [s.kl_text for s in steps(first)] == [None] * 9
    assert [said(run) for run in (first, second)] == [
        f"the reference's log-probs of 12 prompts' answers are computed and kept in {file}",
        f"the reference's log-probs are read from {file}",
    ]
    whole = file.read_bytes()
    kept = tmp_path / "kept"
    kept.write_bytes(whole)
    for broken in (whole[:-5], whole[:-5] + b"\x00" * 5, b"nothing"):
        file.write_bytes(broken)
        third = run_offline(replace(config, out=str(tmp_path / f"third{len(broken)}{broken[-1]}")), build_dpo)
        assert said(third).startswith(f"{file} is not used, for it")
        assert plain(third) == plain(first)
        assert read_back(file) == read_back(kept)


def read_back(file: Path) -> list[float]:
    return load_file(file)["logprobs"].tolist()


def said(run: Any) -> str:
    return next(e.text for e in run.events if isinstance(e, Notice) and e.what == "reference_logprobs")


def test_an_adapter_switched_off_is_a_frozen_copy(tmp_path):
    lora = {"model__adapter": {"rank": 2}, "train__learning_rate": 3e-2}
    off = run_offline(settings(tmp_path, out=str(tmp_path / "off"), **lora), build_dpo)
    copy = settings(tmp_path, out=str(tmp_path / "copy"), model__reference=str(tmp_path / "model"), **lora)
    assert plain(off) == plain(run_offline(copy, build_dpo))
    assert steps(off)[-1].reward_margin > 0.01


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_runs_and_learns(kind, tmp_path):
    """The loss on all pairs at once falls, and the KL is measured whether or not the reference is in the loss."""
    changes = {"train__batch_size": 12, "train__epochs": 6, "train__evaluate_every": 6, "train__checkpoint_every": 6}
    run = run_offline(settings(tmp_path, loss__kind=kind, **changes), build_dpo)
    losses = [step.loss for step in steps(run)]
    assert len(losses) == 6
    if kind != "beta_dpo":  # whose beta moves, and its pairs with it
        assert losses[-1] < losses[0]
    assert steps(run)[-1].reward_margin > steps(run)[0].reward_margin
    assert judged(run)[0].kl_ref.value == 0 < judged(run)[-1].kl_ref.value
    assert {step.pairs for step in steps(run)} == {9 if kind == "beta_dpo" else 12}


def judged_rows() -> list[dict[str, Any]]:
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in rows(12) for side in ("chosen", "rejected")
    ]  # fmt: skip


@pytest.mark.parametrize("baseline", ["mismatched", "on_policy", "prefixes", "zero"])
def test_kto_learns_from_judged_texts(baseline, tmp_path):
    changes = {"train__batch_size": 12, "train__epochs": 4, "train__evaluate_every": 1, "train__checkpoint_every": 4}
    config = settings(tmp_path, loss__kind="kto", loss__baseline=baseline, **changes)
    run = run_offline(config, partial(build_dpo, pairs=judged_rows()))
    assert steps(run)[-1].loss < steps(run)[0].loss
    assert steps(run)[-1].reward_margin > 0 == steps(run)[0].reward_margin
    assert judged(run)[-1].n_pairs == 12, "held-out pairs are a wanted and an unwanted text each"
    baselines = [step.kto_baseline for step in steps(run)]
    match baseline:
        case "zero":
            assert baselines == [0] * len(baselines)
        case "on_policy":
            assert baselines == [event.kl_ref.value for event in judged(run)[:-1]]
        case _:
            assert baselines[0] == 0
            assert all(value >= 0 for value in baselines)
            assert max(baselines) > 0 or any(step.kto_baseline_clamped for step in steps(run))


def test_the_gradient_of_kto_is_that_of_the_formula():
    """λ σ(∓β (ratio − z0)), z0 from each answer put to another's prompt, by single rows of the model."""
    policy, reference = small_policy(0), small_policy(1)
    texts = replace(PAIRS, answers=[both[:1] for both in PAIRS.answers], ended=[both[:1] for both in PAIRS.ended])
    labels = torch.tensor([True, False, True])
    loss = KTO(beta=BETA, desirable=2.0)
    objective = preferring(policy, reference, texts, loss=loss, labels=labels)
    taught = objective.learn(0, objective.begin(), at(Plan("plain")))
    found = torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])
    policy.zero_grad()

    def ratio(prompt: int, text: int) -> torch.Tensor:
        ids = texts.prompts[prompt], texts.answers[text][0]
        return logprob(policy, *ids) - logprob(reference, *ids).detach()

    index = indices(0, 3, 3, 0)
    moved = mismatched(torch.tensor([0, 1, 2]))
    pairs = zip(moved.prompt.tolist(), moved.text.tolist(), strict=True)
    z0 = max(0.0, sum(float(ratio(index[k], index[j])) for k, j in pairs) / 3)
    losses = [
        (2.0 if labels[i] else 1.0) * torch.sigmoid((-1 if labels[i] else 1) * BETA * (ratio(i, i) - z0))
        for i in range(3)
    ]
    truth = torch.stack(losses).mean()
    truth.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.trainable() if p.grad is not None])
    assert abs(taught.loss - float(truth)) < LOOP
    assert abs(taught.figures["kto_baseline"] - z0) < LOOP
    assert torch.allclose(found, expected, rtol=0, atol=LOOP)


def test_after_a_reset_the_policy_is_its_own_reference(tmp_path):
    run = run_offline(settings(tmp_path, model__reference_update={"kind": "reset", "every": 4}), build_dpo)
    margins = [step.reward_margin for step in steps(run)]
    assert [i for i, margin in enumerate(margins) if margin == 0] == [0, 4, 8]
    assert [e.step for e in run.events if isinstance(e, ReferenceChange)] == [4, 8]
    last = judged(run)[-1]
    assert 0 < last.kl_ref.value < last.kl_origin.value


def test_a_budget_ends_the_run_and_the_best_lies_below_it(tmp_path):
    free = run_offline(settings(tmp_path, out=str(tmp_path / "free"), train__keep="all"), build_dpo)
    kls = [e.kl_ref.value for e in judged(free)]
    assert kls[0] == 0
    assert kls[1] < kls[2]
    budget = (kls[1] + kls[2]) / 2
    run = run_offline(settings(tmp_path, kl__budget=f"{budget} nats/sequence"), build_dpo)
    assert run.ended == "budget"
    assert len(run.steps) == 6
    assert run.best.path.resolve().name == "step-000003"
    best = max(judged(free)[1:], key=lambda e: e.accuracy)
    assert free.best.path.resolve().name == f"step-{best.step:06d}"
    page = (run.path / "report.html").read_text()
    assert "KL(policy‖reference) on its own words" in page
    assert "kl.budget" in page
    assert len((run.path / "samples.jsonl").read_text().splitlines()) == 3 * 8


def test_without_held_out_pairs_the_first_of_training_are_watched(tmp_path):
    run = run_offline(settings(tmp_path, data__held_out=None), build_dpo)
    assert [(e.held_out, e.n_pairs) for e in judged(run)] == [(False, 12)] * 4
    assert run.model.path.name == "step-000009"


TURNED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "samples": ({"kl__samples": 3}, {}),
    "prompts": ({"kl__prompts": 3}, {}),
    "max_new_tokens": ({"kl__max_new_tokens": 3}, {}),
    "target": ({"kl__target": "2 nats/sequence"}, {}),
    "controller": ({"kl__controller": {"kind": "pi", "kp": 0.1}}, {"kl__target": "2 nats/sequence"}),
    "beta": ({"loss__beta": 0.2}, {}),
    "length": ({"loss__length": "mean"}, {}),
    "max_tokens": ({"data__max_tokens": 6}, {}),
    "chat": ({"data__chat": True}, {"model__policy": "chat"}),
    "system": ({"data__system": "t9"}, {"model__policy": "chat"}),
    "template": ({"data__template": {"thinks": True}}, {"model__policy": "chat", "data__chat": True}),
}


@pytest.mark.parametrize("name", TURNED)
def test_every_key_changes_something(name, tmp_path):
    """Those that no other test here turns."""
    runs = []
    turned, base = TURNED[name]
    settings(tmp_path)
    shutil.copytree(tmp_path / "model", tmp_path / "chat")
    (tmp_path / "chat" / "chat_template.jinja").write_text(CHAT)
    for i, changes in enumerate((base, base | turned)):
        changes = changes | {"train__steps": 3, "train__epochs": None, "out": str(tmp_path / f"run{i}")}
        if changes.get("model__policy") == "chat":
            changes["model__policy"] = str(tmp_path / "chat")
        runs.append(run_offline(settings(tmp_path, **changes), build_dpo))
    assert (plain(runs[0]), judged(runs[0])) != (plain(runs[1]), judged(runs[1]))


CHAT = (
    "{% for m in messages %}{{ 't31' if m.role == 'user' else 't30' }} {{ m.content }} t2 {% endfor %}"
    "{% if add_generation_prompt %}t30 {% endif %}{% if thinks %}t29 {% endif %}"
)


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model__critic": "head"}, "model.critic would not be used"),
        ({"model__reference_update": {"kind": "stall", "patience": 3}}, "waits for a reward"),
        ({"kl__cache": True, "model__reference_update": {"kind": "reset", "every": 2}}, "would be the first reference"),
        ({"kl__target": 4}, "has no unit"),
        ({"kl__controller": "pi"}, "needs kl.target"),
        ({"kl__target": "4 nats/sequence", "kl__controller": {"kind": "cosine", "end": 1.0, "steps": 9}}, "cosine"),
        ({"kl__target": "4 nats/sequence", "kl__budget": "3 nats/sequence"}, "is not above the target"),
        ({"kl__prompts": 0}, "kl.prompts = 0 must be at least 1"),
        ({"kl__max_new_tokens": 99}, "has room for"),
        ({"data__max_tokens": 1}, "data.max_tokens = 1 must be at least 2"),
        ({"data__system": " "}, "data.system is empty"),
        ({"data__pairs": "nowhere.jsonl"}, "data.pairs: there is no prompt file"),
        ({"loss__kind": "dpoo"}, "did you mean"),
        ({"loss__kind": "simpo", "kl__target": "2 nats/sequence"}, "needs a loss that holds the reference"),
        ({"loss__kind": "beta_dpo", "kl__target": "2 nats/sequence"}, "would both move beta"),
        ({"loss__kind": "orpo", "kl__cache": True}, "reads no reference"),
        ({"loss__beta": 0}, "loss.beta = 0"),
        ({"train__batch_size": 13}, "exceeds the 12 rows"),
    ],
)
def test_a_config_that_cannot_be_meant_is_one_sentence(changes, why, tmp_path):
    with pytest.raises(UsageError, match=why):
        build_dpo(settings(tmp_path, **changes))


def test_a_bad_row_is_named_with_its_file(tmp_path):
    config = settings(tmp_path)
    bad = [*rows(6), {"prompt": "t5", "chosen": " t6", "rejected": " t6"}]
    with pytest.raises(UsageError, match=r"data\.held_out: pair 6: chosen and rejected are the same"):
        build_dpo(config, held_out=bad)
    dropped = replace(config, data=replace(config.data, bad_rows="drop"))
    assert any("1 of 7 rows were left out" in line for line in build_dpo(dropped, held_out=bad).described)


def test_sides_that_a_cut_makes_one_are_refused_or_left_out(tmp_path):
    """One pair's answers part at their third token, and two are left of each. Left out, it was never there."""
    config = settings(tmp_path, data__max_tokens=3, data__held_out=None, kl__cache=True)
    good = [{"prompt": f"t{5 + i}", "chosen": " t6", "rejected": " t7"} for i in range(4)]
    good.append({"prompt": "t5", "chosen": " t6 t7 t8", "rejected": " t9"})
    made = [*good[:2], {"prompt": "t5", "chosen": " t6 t7 t8", "rejected": " t6 t7 t9"}, *good[2:]]
    with pytest.raises(
        UsageError, match=r"data\.pairs: pair 2: chosen and rejected are the same tokens, once .* cut at"
    ):
        build_dpo(config, pairs=made)
    config = replace(config, data=replace(config.data, bad_rows="drop"))
    dropped, without = build_dpo(config, pairs=made), build_dpo(config, pairs=good)
    assert any("1 more pairs were left out" in line for line in dropped.described)
    assert dropped.fingerprints == without.fingerprints
    left, never = dropped.objective, without.objective
    assert isinstance(left, Preferring) and isinstance(never, Preferring)
    assert (left.pairs, left.watched.pairs, left.words.ids) == (never.pairs, never.watched.pairs, never.words.ids)
    assert left.cache is not None and never.cache is not None and left.cache.key == never.cache.key


def test_judged_texts_that_a_cut_makes_one_keep_their_labels(tmp_path):
    """As judged texts the sides stand alone: the same words wanted and unwanted are noise, and not refused."""
    config = settings(tmp_path, loss=KTO(), data__max_tokens=3, data__held_out=None)
    made = [{"prompt": "t5", "chosen": " t6 t7 t8", "rejected": " t6 t7 t9"}] * 4
    objective = build_dpo(config, pairs=made).objective
    assert isinstance(objective, Preferring) and objective.labels is not None
    assert objective.labels.tolist() == [True, False] * 4
    assert len(objective.pairs) == 8


def test_the_law_is_pi_where_there_is_a_target(tmp_path):
    objective = build_dpo(settings(tmp_path, kl__target="1 nats/sequence")).objective
    assert isinstance(objective, Preferring)
    assert objective.leash.law == PI()
