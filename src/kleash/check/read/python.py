"""TRL scripts, by their syntax tree: nothing of them is run."""

import ast
from pathlib import Path
from typing import Any

from kleash.check.records import Unread
from kleash.errors import UsageError

CONFIGS: dict[str, str] = {
    "GRPOConfig": "grpo",
    "RLOOConfig": "rloo",
    "DPOConfig": "dpo",
    "KTOConfig": "kto",
    "PPOConfig": "ppo",
    "PPOv2Config": "ppo",
    "ORPOConfig": "orpo",
    "CPOConfig": "cpo",
    "OnlineDPOConfig": "online_dpo",
    "AsyncGRPOConfig": "async_grpo",
}
_TRAINERS = {name.replace("Config", "Trainer"): method for name, method in CONFIGS.items()}
_FROM_FILE = ("TrlParser", "HfArgumentParser")


def from_python(path: Path, text: str) -> list[tuple[Any, str, str, dict[str, Any]]]:
    """Each `GRPOConfig(…)` (or RLOO's, DPO's, …) of the file, with what its trainer is given."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{path} is no Python: line {error.lineno}: {error.msg}") from None
    names = _constants(tree)
    calls = [(_callee(node), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: call[1].lineno)
    configs = [(CONFIGS[name], node) for name, node in calls if name in CONFIGS]
    trainers = {_TRAINERS[name]: node for name, node in calls if name in _TRAINERS}
    parsed = any(name in _FROM_FILE for name, _ in calls)
    found = []
    for method, node in configs:
        about = _of_trainer(trainers[method], names) if method in trainers else {}
        found.append(("TRL", method, f"{path}:{node.lineno}", _keywords(node, names) | about))
    for method, node in trainers.items():
        if method in dict(configs):
            continue
        if parsed:
            raise UsageError(
                f"{path} takes its arguments from the command line: check the script or YAML that gives them"
            )
        found.append(("TRL", method, f"{path}:{node.lineno}", _of_trainer(node, names)))
    return found


def _callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that the file assigns once."""
    seen: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    seen.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in seen.items() if len(values) == 1}


def _read(node: ast.expr, names: dict[str, ast.expr]) -> Any:
    """A literal, or a name that stands for one."""
    if isinstance(node, ast.Name) and node.id in names:
        node = names[node.id]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return Unread(ast.unparse(node))


def _keywords(call: ast.Call, names: dict[str, ast.expr]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for keyword in call.keywords:
        value = _read(keyword.value, names)
        if keyword.arg is not None:
            settings[keyword.arg] = value
        elif isinstance(value, dict):
            settings |= {str(key): inner for key, inner in value.items()}
        else:
            inner = names.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else keyword.value
            settings |= _keywords(inner, names) if isinstance(inner, ast.Call) and _callee(inner) == "dict" else {}
    return settings


def _of_trainer(call: ast.Call, names: dict[str, ast.expr]) -> dict[str, Any]:
    """What matters of the trainer's call: whether the model is more than loaded, and whether there is an adapter."""
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if call.args:
        given.setdefault("model", call.args[0])
    settings: dict[str, Any] = {}
    if "model" in given:
        node = given["model"]
        node = names.get(node.id, node) if isinstance(node, ast.Name) else node
        settings["model is made here"] = isinstance(node, ast.Call) and _callee(node) != "from_pretrained"
    peft = given.get("peft_config")
    if peft is not None and not (isinstance(peft, ast.Constant) and peft.value is None):
        settings["use_peft"] = True
    return settings
