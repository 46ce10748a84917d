"""Every tolerance of the test suite, by name. A test that needs a looser one has found a bug."""

#: float64 against exact enumeration or a closed form, a few thousand operations.
EXACT = 1e-12
#: float64 through a whole transformers model and the real training loop.
LOOP = 1e-8
#: fp32 against a float64 reference, relative to the largest value.
FP32 = 2e-5
#: log-probs of two fp32 paths through the same model.
PATHS = 2e-5
#: gradients of two fp32 paths through the same model, relative.
PATHS_GRADIENT = 1e-4
#: bf16 inputs, fp32 accumulation, against float64 on the same bf16 inputs.
BF16 = 2e-3
#: figures printed in a paper or a table to so many digits.
PRINTED = 5e-4
#: memory against the ledger's figures: a plan counts on 0.8 of what there is, which leaves a quarter of the figure.
LEDGER = 0.25
#: log-probs of a small model whose weights are stored in half precision, against the same in fp32.
HALF_LOGPROB = 0.05
#: float64: an audit through a whole model against enumeration.
AUDIT = 1e-9
#: nats, of figures above 1 relative: fp32 audit of a scaled head against a float64 script from full logits.
HEAD = 1e-6
#: a ratio of two KLs of small steps against the square of theirs, relative: the next order is left out.
QUADRATIC = 0.05
#: a log-temperature found by interpolation between eight steps, relative.
INTERPOLATED = 1e-3
#: a scale of 5,000 draws or more against the one they were drawn with, relative.
DRAWN = 0.05
