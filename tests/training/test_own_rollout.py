"""A loop of the user's own: what it did not sample is read and never counted, in value and in gradient."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    EOS,
    PROMPT,
    SPACE,
    C,
    Setting,
    V,
    gradient,
    run_step,
    scores,
    small_model,
    small_policy,
)
from tests.training.small import OF_THE_MACHINE, events, settings, steps

from kleash.algorithms import RLOO
from kleash.errors import KleashError, RunError
from kleash.kl.penalties import Exact
from kleash.models.draw import keyed_noise
from kleash.models.paths import PATHS
from kleash.models.sampling import Sampling
from kleash.models.stopping import Ends
from kleash.models.turns import Episode, Key, Turns
from kleash.runlog import Evaluation, Sample
from kleash.tensors import Rollout
from kleash.training.api import start
from kleash.training.toml import parse_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "tool_env.py"

ENVIRONMENT = """
def one(prompts, generate):
    return [{"ids": ids, "mask": [True] * len(ids)} for ids in generate([[] for _ in prompts])]

def two(prompts, generate, tokenizer, **columns):
    ids = [list(new) for new in generate([[] for _ in prompts], max_new_tokens=2)]
    mask = [[True] * len(new) for new in ids]
    for row in range(len(prompts)):
        ids[row] += [9, 10, 11]
        mask[row] += [False] * 3
    for row, new in enumerate(generate(ids)):
        ids[row] += new
        mask[row] += [True] * len(new)
    return [{"ids": i, "mask": m, "told": 3} for i, m in zip(ids, mask)]

def told(completions, told, **columns):
    return [float(" t9 t10 t11" in " " + text) + n for text, n in zip(completions, told)]

def raises(prompts, generate):
    raise ValueError("no tool")

def short(prompts, generate):
    return one(prompts, generate)[1:]

def needs(prompts, generate, tool):
    return one(prompts, generate)

def edited(prompts, generate, **change):
    return [{**episode, **CHANGE} for episode in one(prompts, generate)]
"""


def home(tmp_path: Path, function: str, change: str = "{}", **changes) -> dict:
    tree = settings(tmp_path, data__rollout=f"{tmp_path / 'env.py'}:{function}", **changes)
    (tmp_path / "env.py").write_text(ENVIRONMENT.replace("CHANGE", change))
    return tree


def records(run: Path) -> list[dict]:
    return [{k: v for k, v in asdict(step).items() if k not in OF_THE_MACHINE} for step in steps(run)]


def test_one_turn_is_the_sampler_itself(tmp_path):
    plain = start(parse_config(settings(tmp_path, out=str(tmp_path / "plain"), train__stop=["t5"]))).path
    own = start(parse_config(home(tmp_path, "one", out=str(tmp_path / "own"), train__stop=["t5"]))).path
    assert records(plain) == records(own)
    assert [s.completion for s in events_of_samples(plain)] == [s.completion for s in events_of_samples(own)]


def events_of_samples(run: Path) -> list[Sample]:
    from kleash.runlog import read

    return [event for event in read(run / "samples.jsonl") if isinstance(event, Sample)]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_two_turns_train_and_are_evaluated(tmp_path, algorithm):
    (tmp_path / "held.txt").write_text("t11 t12\nt13\n")
    tree = home(tmp_path, "two", data__held_out=str(tmp_path / "held.txt"), train__steps=2)
    tree |= {
        "algorithm": {"kind": algorithm, "group_size": 2},
        "rewards": [*tree["rewards"], {"use": f"{tmp_path / 'env.py'}:told"}],
    }
    run = start(parse_config(tree)).path
    assert [step.scores["told"] for step in steps(run)] == [4.0] * 3, (
        "the reward sees the tool's words and the episode's column"
    )
    assert [event.scores["told"] for event in events(run, Evaluation)] == [4.0] * 2
    assert steps(run)[0].kl_ref.value == 0.0
    assert steps(run)[1].kl_ref.value > 0
    assert abs(steps(run)[1].kl_sampler.value) < 1e-3  # tolerances: a log-prob of other tokens would be nats away
    sample = events_of_samples(run)[0]
    assert "t9 t10 t11" in sample.completion
    assert sample.length <= 8 - 3


def test_the_example_runs(tmp_path):
    tree = settings(
        tmp_path, data__rollout=f"{EXAMPLE}:run", data__prompts=str(tmp_path / "sums.jsonl"), train__steps=1,
        model__policy="kleash:tiny", train__max_new_tokens=48,
    )  # fmt: skip
    (tmp_path / "sums.jsonl").write_text('{"prompt": "We paid 3 + 4 for it.", "answer": 7}\n' * 3)
    tree["rewards"] = [{"use": f"{EXAMPLE}:right"}]
    run = start(parse_config(tree)).path
    assert "The result is 7." in events_of_samples(run)[0].completion


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────

WRONG = [
    ("raises", "{}", r"data.rollout: raises: it raised ValueError: no tool \(.*env.py:"),
    ("short", "{}", "returned 3 episodes for 4 prompts"),
    ("needs", "{}", "rollout 'needs' needs `tool`"),
    ("missing", "{}", "there is no 'missing' in"),
    ("edited", "{'mask': [True]}", "ids and 1 entries in its mask"),
    ("edited", "{'mask': [1] * 8, 'ids': [5] * 8}", "list of True and False"),
    ("edited", "{'ids': [10**6], 'mask': [False]}", "token id 1000000; the model's ids go from 0 to"),
    ("edited", "{'ids': [5.0], 'mask': [False]}", "must be a list of token ids"),
    ("edited", "{'ids': [5] * 9, 'mask': [False] * 9}", "9 tokens after the prompt, observations included"),
    ("edited", "{'ids': [5], 'mask': [False]}", "counts no token"),
    ("edited", "{'ids': [5, 5, 5], 'mask': [True] * 3}", "which generate did not draw after the tokens before it"),
    ("edited", "{'text': 3}", "must be a string"),
    ("edited", "{'completions': 3}", "a column of that name already"),
]


@pytest.mark.parametrize(("function", "change", "said"), WRONG)
def test_what_is_wrong_is_said_before_the_first_step(tmp_path, function, change, said):
    with pytest.raises(KleashError, match=said):
        start(parse_config(home(tmp_path, function, change)))
    assert not (tmp_path / "run" / "events.jsonl").exists()


# ── the draws ───────────────────────────────────────────────────────────────────────────────────────────────

SEED = Key(seed=3, step=5, prompts=[11, 7])
SETTINGS = Sampling(max_new_tokens=6)
ENDS = Ends((EOS,), EOS)


def turns(rows: list[list[int]] | None = None, key: Key = SEED, group_size: int = 2) -> Turns:
    return Turns(small_policy(1), rows or [PROMPT, [4, 1]], SETTINGS, ENDS, group_size=group_size, key=key)


def test_a_draw_is_keyed_by_prompt_sample_and_position_alone():
    """All rows at once, one row at a time, and the tokens written out by inverse CDF from the model's own rows."""
    so_far = [[1], [0, 3], [3, 3, 3], []]
    together = turns()(so_far)
    alone = turns()
    for row, ids in enumerate(so_far):
        only = [ids if other == row else None for other in range(4)]
        assert alone(only)[row] == together[row]
    model, noise = small_model(1), keyed_noise(3, 5, [11, 7], 2, 6)
    for row, ids in enumerate(so_far):
        whole, found = [*([PROMPT, [4, 1]][row // 2]), *ids], []
        while len(ids) + len(found) < 6 and EOS not in found:
            with torch.no_grad():
                p = model(input_ids=torch.tensor([whole + found])).logits[0, -1].softmax(-1)
            uniform = float(noise[row, len(ids) + len(found)]) / 2**44
            found.append(int((p.cumsum(0) <= uniform).sum()))
        assert together[row] == found


def test_a_call_may_be_shorter_and_there_is_no_room_past_the_limit():
    generate = turns()
    full = generate([[], [], [], []])
    some = turns()([[], None, [1] * 6, []], max_new_tokens=2)
    assert some == [full[0][:2], [], [], full[3][:2]]
    with pytest.raises(RunError, match="was given 3 episodes and there are 4"):
        generate([[], [], []])
    with pytest.raises(RunError, match="7 tokens after the prompt"):
        generate([[1] * 7, None, None, None])


def test_a_token_counts_only_after_the_tokens_it_was_drawn_after():
    generate = turns([[4, 1]], Key(0, 0, [0]), group_size=1)
    first = generate([[1]])[0]
    rollout = generate.rollout([Episode([1, *first], [False] + [True] * len(first))])
    assert rollout.sampler[0, 0] == 0
    with pytest.raises(RunError, match="counts token 1"):
        generate.rollout([Episode([3, *first], [False] + [True] * len(first))])


# ── what holes do not do ────────────────────────────────────────────────────────────────────────────────────


def with_holes() -> Rollout:
    """Two groups of two: an observation inside, at the start, at the end, and two holes."""
    ids = torch.tensor([[1, 3, 4, 0, 2], [0, 1, 1, 3, 4], [3, 1, 0, 4, 4], [1, 0, 3, 1, 2]])
    mask = torch.tensor([[1, 0, 0, 1, 1], [0, 0, 1, 1, 0], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1]]).bool()
    return Rollout(
        prompt_ids=torch.tensor([[3, 0, 4], [2, 1, 3]]),
        prompt_mask=torch.tensor([[True] * 3, [False, True, True]]),
        completion_ids=ids,
        mask=mask,
        group=torch.tensor([0, 0, 1, 1]),
        sampler=torch.zeros(4, 5, dtype=torch.float64),
        truncated=torch.zeros(4, dtype=torch.bool),
    )


@pytest.mark.parametrize("path", PATHS)
def test_each_path_equals_single_rows_in_value_and_gradient(path):
    rollout = with_holes()
    policy, reference = small_policy(1), small_policy(2)
    with torch.no_grad():
        hidden = reference.hidden(rollout, path)
    from kleash.tensors import ReferenceStates

    head = reference.head()
    states = ReferenceStates(hidden, replace(head, weight=head.weight.detach()))
    look = policy(rollout, reference=states, path=path)
    weight = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = gradient((weight * (look.logprobs + look.kl) * rollout.mask).sum(), policy)
    total = torch.zeros((), dtype=torch.float64)
    for row, n in enumerate(rollout.group.tolist()):
        prompt = rollout.prompt_ids[n][rollout.prompt_mask[n]]
        whole = torch.cat([prompt, rollout.completion_ids[row]])[None]
        p = policy.model(input_ids=whole).logits[0].log_softmax(-1)
        q = reference.model(input_ids=whole).logits[0].log_softmax(-1).detach()
        for t in rollout.mask[row].nonzero()[:, 0].tolist():
            at = len(prompt) + t - 1
            logprob, kl = p[at, rollout.completion_ids[row, t]], (p[at].exp() * (p[at] - q[at])).sum()
            assert look.logprobs[row, t].item() == pytest.approx(logprob.item(), abs=LOOP)
            assert look.kl[row, t].item() == pytest.approx(kl.item(), abs=LOOP)
            total = total + weight[row, t] * (logprob + kl)
    truth = gradient(total, policy)
    assert float((found - truth).norm() / truth.norm()) < LOOP
    assert look.logprobs[~rollout.mask].eq(0).all()
    assert look.kl[~rollout.mask].eq(0).all()


def observed(first: int) -> int:
    """What the environment says after a first token."""
    return (3 * first + 1) % V


def episodes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every episode token – observation – token (or an end token at once), and the score of what was sampled in it."""
    by_words = {tuple(ids[m].tolist()): float(s) for ids, m, s in zip(SPACE.ids, SPACE.mask, scores(), strict=True)}
    rows = [([EOS, EOS, EOS], [True, False, False], by_words[(EOS,)])]
    for first in range(V):
        for second in range(V) if first != EOS else ():
            words = (first, EOS) if second == EOS else (first, second, EOS)  # the same text, for the reward is of text
            rows.append(([first, observed(first), second], [True, False, True], by_words[words]))
    ids, mask, score = zip(*rows, strict=True)
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(score, dtype=torch.float64)


@pytest.mark.slow
def test_gradient_through_the_loop_is_that_of_the_sampled_tokens(tmp_path, monkeypatch):
    """All pairs of all episodes, weighted: ∇(E R − β E Σ over sampled tokens of K_t), the environment being fixed."""
    policy, reference = small_policy(1), small_policy(2)
    ids, mask, score = episodes()
    rows = torch.cat([torch.tensor(PROMPT).expand(len(ids), -1), ids[:, :-1]], 1)

    def next_logprobs(model) -> torch.Tensor:
        return model(input_ids=rows, use_cache=False).logits[:, len(PROMPT) - 1 :].log_softmax(-1)

    p, q = next_logprobs(policy.model), next_logprobs(reference.model).detach()
    tokens = torch.where(mask, p.gather(-1, ids[..., None])[..., 0], 0.0)
    probability = tokens.sum(1).exp()
    assert probability.sum().item() == pytest.approx(1, abs=EXACT)
    kl = torch.where(mask, (p.exp() * (p - q)).sum(-1), 0.0).sum(1)
    truth = -gradient((probability * (score - BETA * kl)).sum(), policy) / C
    first, second = torch.cartesian_prod(torch.arange(len(ids)), torch.arange(len(ids))).T
    n, drawn = len(first), torch.stack([first, second], 1).flatten()
    weight = probability.detach()
    rollout = Rollout(
        prompt_ids=torch.tensor(PROMPT).expand(n, -1),
        prompt_mask=torch.ones(n, len(PROMPT), dtype=torch.bool),
        completion_ids=ids[drawn],
        mask=mask[drawn],
        group=torch.arange(n).repeat_interleave(2),
        sampler=tokens.detach()[drawn],
        truncated=torch.zeros(2 * n, dtype=torch.bool),
        weight=weight[first] * weight[second] * n,
    )
    spy = run_step(Setting(RLOO(group_size=2), Exact()), policy, reference, rollout, tmp_path, monkeypatch)
    assert float((spy.seen[0] - truth).norm() / truth.norm()) < LOOP
