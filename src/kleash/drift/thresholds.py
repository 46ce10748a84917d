"""Every threshold of a verdict, with its reason. All but the last were frozen before docs/examples were measured.

KLs are forward, KL(base‖tuned), of the built-in off-task set, nats per token.
"""

#: Times the noise floor that a drift's upper bound must exceed to be there at all. The floor is the mean KL of a model
#: against itself in another precision or batch; a pair that differs by rounding alone measures about the floor, and
#: twice it leaves room for its interval and for a second rounding. (mlx-kld calls a figure floor-limited below twice.)
FLOOR_TIMES = 2.0

#: From here on a drift is worth a remark. 0.02 is about 14 times what bf16 does to SmolLM2 (0.0014); over an answer of
#: 100 tokens it is 2 nats, so that what the base says is 7 times less likely from the tuned model.
NOTICEABLE = 0.02

#: From here on a drift is large: 5 nats over an answer of 100 tokens, or 150 times less likely. Tools for quantised
#: models draw their lines around it: mlx-quant-fidelity calls a mean of 0.01 good, and one above 0.2 bad.
LARGE = 0.05

#: Share of off-task tokens with NaN or −inf among their logits above which the means of the others say little.
NON_FINITE = 0.01

#: A change of a score that is worth having, as a share of the score's range: "no gain" is an interval that lies below
#: it. Smaller changes are within what a rewording of the prompt does to a small model.
WORTH_HAVING = 0.1

#: A loss on the off-task texts themselves that no gain makes up for: a tenth of the score's range, as for other
#: scores, where 1 is to know each text word for word and 0 to know how often each letter stands in it. Added after the
#: hacked pair had been judged (docs/decisions/what-a-verdict-says-of-losses.md). Of SmolLM2 it is 1.2 nats a token:
#: the tuned model finds each token less than a third as likely, in texts of twelve domains that nobody tuned for.
TEXTS_LOST = 0.1
