"""What the gradient of a charge truly is, by where it stands and how it is estimated. Measured by enumeration for the
estimators in a loss (docs/runs/estimators.md, docs/kl.md)."""

SEQUENCE = "the reverse KL of the whole sequence, noisily"
OWN = "the reverse KL of each position; a token is not charged for the KL that it leads to"
FORWARD = "the forward KL(reference‖policy) of each position, though the value is that of the reverse one"
ZERO = "zero in expectation: it charges nothing"
NEITHER = "neither KL's: 25 % off the reverse KL's in the case enumerated for peers (6 tokens)"
VANISHES = "not the KL's: with a score-function gradient this estimator's charge vanishes or points the wrong way"
IMPLICIT = "through the pair's loss: the optimum is reference · exp(implicit reward / β)"

#: In a loss, differentiated as it stands.
IN_LOSS = {"k1": ZERO, "k2": OWN, "k3": FORWARD, "abs": NEITHER}
#: As a number in the reward.
IN_REWARD = {"k1": SEQUENCE, "k2": VANISHES, "k3": VANISHES, "abs": VANISHES}
