"""All rules. A new one is a class (or a row of TEXT_RULES) and a line here."""

from kleash.monitor.rule import Rule
from kleash.monitor.rules.entropy import EntropyBreaks, EntropyCollapse, EntropyExplosion
from kleash.monitor.rules.kl import OverBudget, Runaway, Spike, UpWhileFlat
from kleash.monitor.rules.leash import Oscillating, Pinned, Price, ReferenceMoved, ShorterUnderCharge, TooTight
from kleash.monitor.rules.measured import AtClamp, AtStart, Negative, NotMeasured
from kleash.monitor.rules.policy import (
    Clipped,
    Dead,
    Gradients,
    NotFinite,
    SamplerMismatch,
    Truncated,
)
from kleash.monitor.rules.preferences import Displaced
from kleash.monitor.rules.reward import Apart, FewRows, Hacking, LengthCoupled, SpreadGone
from kleash.monitor.rules.samples import TEXT_RULES

RULES: tuple[Rule, ...] = (
    NotMeasured(),
    OverBudget(),
    Runaway(),
    Spike(),
    UpWhileFlat(),
    Negative(),
    AtStart(),
    AtClamp(),
    TooTight(),
    Price(),
    ShorterUnderCharge(),
    Pinned(),
    Oscillating(),
    ReferenceMoved(),
    Apart(),
    FewRows(),
    Hacking(),
    SpreadGone(),
    LengthCoupled(),
    EntropyCollapse(),
    EntropyExplosion(),
    EntropyBreaks(),
    Clipped(),
    SamplerMismatch(),
    Gradients(),
    NotFinite(),
    Dead(),
    Truncated(),
    *TEXT_RULES,
    Displaced(),
)

#: What a sign is a sign of: two of different kinds are independent evidence (`engine`). A KL over a budget says how far
#: the policy is, and no more; notes are no signs.
SIGNS: dict[str, str] = {
    "kl runaway": "kl",
    "reward up, kl accelerating": "kl",
    "kl up, reward flat": "kl",
    "reward up, quality down": "quality",
    "reward follows length": "length",
    "answers do not end": "length",
    "entropy collapse": "entropy",
    "entropy explosion": "entropy",
    "entropy breaks away": "entropy",
    "repetition": "text",
    "one opening": "text",
    "one answer": "text",
    "script": "text",
    "degenerate": "text",
    "copying": "text",
}
