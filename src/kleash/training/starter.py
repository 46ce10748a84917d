"""The text of a starting config: the values of `suggest` with what they mean beside them, at most 30 lines."""

import json
from dataclasses import dataclass
from typing import Literal

from kleash.records import Target
from kleash.training import setup
from kleash.training.kl_config import DEFAULT_TARGET
from kleash.training.offline import dpo_setup
from kleash.training.suggest import RANK, Start

Kind = Literal["grpo", "ppo", "dpo", "rlaif"]
#: Written where a person named no model.
PLACEHOLDER = "./my-model"
_COLUMN = 44
#: A starting config is seen at once.
LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person said on the command line; None: a name that is theirs to fill in."""

    kind: Kind
    model: str | None = None
    chat: bool = False
    is_adapter: bool = False
    data: str | None = None
    held_out: str | None = None
    reward: str | None = None
    rubric: str | None = None
    out: str | None = None


def starter(wishes: Wishes, start: Start) -> str:
    """The TOML."""
    body = _offline(wishes, start) if wishes.kind == "dpo" else _online(wishes, start)
    verb = "dpo" if wishes.kind == "dpo" else "train"
    lines = [
        f"# {_TITLES[wishes.kind]}",
        f"#   kleash {verb} run.toml --check-only      then the same without --check-only",
        _line(f"out = {_text(wishes.out or f'runs/{wishes.kind}')}", "must not hold a run yet"),
        "",
        *_model(wishes, start),
        *body,
    ]
    while len(lines) > LINES and "" in lines:
        lines.remove("")  # from the top
    return "\n".join(lines) + "\n"


_TITLES = {
    "grpo": "GRPO on a leash: several answers a prompt, each scored beside the others.",
    "ppo": "PPO on a leash: a critic, several passes over each step's answers.",
    "dpo": "DPO on preference pairs, with the KL on the model's own words in sight.",
    "rlaif": "AI feedback on a leash: a judge compares answers by a written rubric.",
}


def _model(wishes: Wishes, start: Start) -> list[str]:
    lines = [
        "[model]",
        _line(f"policy = {_text(wishes.model or PLACEHOLDER)}", "directory, hub id, kleash:tiny, kleash:smollm2"),
    ]
    if start.adapter and not wishes.is_adapter:
        lines.append(_line(f"adapter = {{ rank = {RANK} }}", "leave out to train all weights"))
    if start.quantised:
        lines.append(_line('quantize = "4bit"', "the base in few bits, by torchao: docs/qlora.md"))
    if start.bf16:
        lines.append(_line('dtype = "bfloat16"', "computes in bf16; trained weights stay fp32"))
    if start.checkpointing:
        lines.append(_line("gradient_checkpointing = true", "less memory, more time"))
    return [*lines, ""]


def _online(wishes: Wishes, start: Start) -> list[str]:
    held_out = wishes.held_out
    data = [
        "[data]",
        _line(f"prompts = {_text(wishes.data or 'prompts.jsonl')}", "column prompt: text or messages"),
        *([] if held_out is None else [_line(f"held_out = {_text(held_out)}", "never trained on; chooses the best")]),
        *([_line("chat = true", "a text is asked as a user's message")] if wishes.chat else []),
        "",
    ]
    per_sequence = Target.parse(DEFAULT_TARGET).value * start.tokens
    train = [
        "[train]",
        _line("steps = 200", "updates; Ctrl-C saves, --resume goes on"),
        f"prompts_per_step = {start.prompts}",
        _line(f"max_new_tokens = {start.tokens}", "of an answer"),
        _line(f"learning_rate = {_rate(start, setup.FULL_RATE, setup.ADAPTER_RATE)}", "halve it if the KL jumps"),
    ]
    target = f"target = {_text(DEFAULT_TARGET)}"
    return [
        *data,
        "[[rewards]]",
        *_reward(wishes),
        "",
        "[algorithm]",
        f'kind = "{"ppo" if wishes.kind == "ppo" else "grpo"}"',
        _line(f"group_size = {start.group}", "answers to a prompt"),
        "",
        "[kl]",
        _line(target, f"tight: {per_sequence:.2g} nats at {start.tokens} tokens; loosen later"),
        "",
        *train,
    ]


def _reward(wishes: Wishes) -> list[str]:
    if wishes.kind != "rlaif":
        return [_line(f"use = {_text(wishes.reward or './reward.py:score')}", "(prompts, completions, **columns)")]
    judge = wishes.reward or wishes.model or PLACEHOLDER
    use = judge if judge.startswith("judge:") else f"judge:{judge}"
    rubric = wishes.rubric or "The better answer is true, helpful and as short as it can be."
    return [
        _line(f"use = {_text(use)}", "a model, or a server: judge:http://…/v1"),
        f'args = {{ rubric = {_text(rubric)}, rivals = "anchor" }}',
    ]


def _offline(wishes: Wishes, start: Start) -> list[str]:
    held_out = wishes.held_out
    rate = _rate(start, dpo_setup.FULL_RATE, dpo_setup.ADAPTER_RATE)
    return [
        "[data]",
        _line(f"pairs = {_text(wishes.data or 'pairs.jsonl')}", "prompt, chosen, rejected"),
        *([] if held_out is None else [_line(f"held_out = {_text(held_out)}", "never trained on; chooses the best")]),
        *([_line("chat = true", "a text is asked as a user's message")] if wishes.chat else []),
        "",
        "[loss]",
        'kind = "dpo"',
        _line("beta = 0.1", "higher: nearer to the reference"),
        "",
        "[kl]",
        _line('budget = "10 nats/sequence"', "on its own words: above it, it saves and stops"),
        "",
        "[train]",
        "epochs = 1",
        f"batch_size = {max(start.prompts * start.group // 4, 4)}",
        _line(f"learning_rate = {rate}", "halve it if the KL jumps"),
    ]


def _rate(start: Start, full: float, adapter: float) -> str:
    return f"{start.faster * (adapter if start.adapter else full):.0e}".replace("e-0", "e-")


def _line(code: str, why: str) -> str:
    return f"{code:<{_COLUMN}}  # {why}" if len(code) < _COLUMN else f"{code}  # {why}"


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are TOML's."""
    return json.dumps(value, ensure_ascii=False)
