"""Every threshold of a verdict, with its reason. They were frozen before the pairs of docs/examples were measured.

KLs are forward, KL(base‖tuned), of the built-in off-task set, nats per token.
"""

#: Times the noise floor that a drift's upper bound must exceed to be there at all. The floor is the mean KL of a model
#: against itself in another precision or batch; a pair that differs by rounding alone measures about the floor, and
#: twice it leaves room for its interval and for a second rounding. (mlx-kld calls a figure floor-limited below twice.)
FLOOR_TIMES = 2.0

#: From here on a drift is worth a remark. 0.02 is about 14 times what bf16 does to SmolLM2 (0.0014), and exp(−0.02) is
#: a likelihood that is 2 % lower at every token.
NOTICEABLE = 0.02

#: From here on a drift is large: a model at 4 bits lies about as far from itself. Users call such a model "slightly
#: worse", and all that the fine-tune did not want is in it.
LARGE = 0.05

#: Share of off-task tokens with NaN or −inf among their logits above which the means of the others say little.
NON_FINITE = 0.01

#: A change of a score that is worth having, as a share of the score's range: "no gain" is an interval that lies below
#: it. Smaller changes are within what a rewording of the prompt does to a small model.
WORTH_HAVING = 0.1
