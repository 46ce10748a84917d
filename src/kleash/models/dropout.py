"""Dropout, truly off: the policy that is scored must be the policy that sampled.

`eval()` is not enough (activation checkpointing needs `train()`), and `nn.Dropout.p` is not either: many models keep
the rate as a number on the module or read it from the config at every call.
"""

from typing import Any

from torch import nn

_DROPOUT = nn.modules.dropout._DropoutNd
#: What modules call the noise that some routers of experts multiply their input by in `train()`.
_JITTER = ("jitter_noise", "input_jitter_noise")


def switch_off_dropout(model: nn.Module) -> int:
    """Sets every dropout rate of the model, of its modules and of their configs to 0; how many were not."""
    changed = 0
    for module in model.modules():
        if isinstance(module, _DROPOUT) and module.p != 0:
            module.p = 0.0
            changed += 1
        changed += _zero_rates(vars(module), module)
    for config in _configs(model):
        changed += _zero_rates(vars(config), config)
    return changed


def _zero_rates(attributes: dict[str, Any], owner: object) -> int:
    # `drop` finds attention_dropout, resid_pdrop, layerdrop, drop_path_rate, hidden_dropout_prob …
    rates = [
        name
        for name, value in attributes.items()
        if ("drop" in name or name in _JITTER) and type(value) is float and value != 0
    ]
    for name in rates:
        setattr(owner, name, 0.0)
    return len(rates)


def _configs(model: nn.Module) -> list[object]:
    """Every config object in reach of the model's modules, sub-configs included, each once."""
    found: dict[int, object] = {}
    waiting = [config for module in model.modules() if (config := vars(module).get("config")) is not None]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "__dict__"):
            continue
        found[id(config)] = config
        waiting += [value for name, value in vars(config).items() if name.endswith("config")]
    return list(found.values())
