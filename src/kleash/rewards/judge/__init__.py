"""AI feedback: a judge model that prefers or grades answers by a written rubric."""

from kleash.rewards.judge.judge import Grade, Judge, Preference
from kleash.rewards.judge.spec import JudgeSpec

__all__ = ["Grade", "Judge", "JudgeSpec", "Preference"]
