"""Reward functions written for TRL or verl, unchanged, behind kleash's signature."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from kleash.errors import UsageError
from kleash.records import Prompt
from kleash.rewards.arguments import chosen, name_of

Function = Callable[..., Any]


def trl(function: Function) -> Function:
    """A TRL reward function: fn(prompts, completions, **columns) -> list of float or None, plain or async.

    As in TRL a completion is a string for a text prompt and a list of one assistant message for a prompt of messages.
    `completion_ids` is given if there is a column of that name; TRL's `trainer_state` and logging hooks are not.
    """

    def rewarder(prompts: list[Prompt], completions: list[str], **columns: list[Any]) -> Any:
        shaped = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, completions, strict=True)
        ]
        return function(**chosen(function, {**columns, "prompts": prompts, "completions": shaped}))

    return rewarder


def verl(function: Function) -> Function:
    """A verl score function: compute_score(data_source, solution_str, ground_truth, extra_info) for one sample.

    It returns a number, or a dict whose "score" is the number; plain or async. Columns as in verl's data sets:
    `data_source`, `ground_truth` or `reward_model` (a dict holding it), `extra_info` ({} where absent).
    """

    def rewarder(completions: list[str], **columns: list[Any]) -> Any:
        results = [
            function(**chosen(function, _verl_sample(function, text, {n: column[i] for n, column in columns.items()})))
            for i, text in enumerate(completions)
        ]
        if any(inspect.isawaitable(result) for result in results):
            return _gathered(results)
        return [_verl_score(result) for result in results]

    return rewarder


async def _gathered(results: list[Any]) -> list[Any]:
    return [_verl_score(result) for result in await asyncio.gather(*results)]


def _verl_sample(function: Function, text: str, row: dict[str, Any]) -> dict[str, Any]:
    sample = {"solution_str": text, "extra_info": row.get("extra_info") or {}}
    if "data_source" in row:
        sample["data_source"] = row["data_source"]
    truth = row if "ground_truth" in row else row.get("reward_model") or {}
    if "ground_truth" not in truth:
        raise UsageError(
            f"the verl reward {name_of(function)!r} needs the column `ground_truth`, or `reward_model` with a "
            "`ground_truth` inside, and the prompts have neither"
        )
    return {**sample, "ground_truth": truth["ground_truth"]}


def _verl_score(result: Any) -> Any:
    """The number of a result. A dict without "score" is handed on, to be refused like any other non-number."""
    return result["score"] if isinstance(result, dict) and "score" in result else result


ADAPTERS: dict[str, Callable[[Function], Function]] = {"trl": trl, "verl": verl}
