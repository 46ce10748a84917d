"""From text to score: any function (prompts, completions, **columns) -> list of float or None."""

from kleash.rewards.load import Rewarder, load_reward, load_rewards
from kleash.rewards.spec import RewardSpec

__all__ = ["RewardSpec", "Rewarder", "load_reward", "load_rewards"]
