"""The laws that move beta, the strength of the leash: pure floats, no torch.

    controller = PI()
    state = controller.init(0.05)
    state = controller.update(state, reading, Target(4.0, "nats/sequence"))

`state.beta` is then the next step's beta.
"""

from kleash.beta.adaptive import PPORule, Ziegler
from kleash.beta.dual import Dual
from kleash.beta.pid import PI, PID
from kleash.beta.schedules import Constant, Cosine, Linear

#: The laws by the `kind` a config names them with.
CONTROLLERS: dict[str, type] = {
    "constant": Constant,
    "linear": Linear,
    "cosine": Cosine,
    "pi": PI,
    "pid": PID,
    "dual": Dual,
    "ziegler": Ziegler,
    "ppo": PPORule,
}

__all__ = ["CONTROLLERS", "PI", "PID", "Constant", "Cosine", "Dual", "Linear", "PPORule", "Ziegler"]
