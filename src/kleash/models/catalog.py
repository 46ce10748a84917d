"""From a model's name, as a person writes it, to a directory on this machine."""

import re
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from kleash.errors import RunError, UsageError
from kleash.models import smollm2

KLEASH_MODELS = ("kleash:tiny", "kleash:smollm2")
#: What a model directory on the hub may hold that kleash needs; pickled weights are never fetched.
_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_NOT = ["original/*", "consolidated*", "onnx/*"]


def resolve(name: str, *, code: bool = False) -> Path:
    """The directory of the model called `name`, fetched first where it has to be.

    Args:
        name: "kleash:tiny", "kleash:smollm2", "runs/x@step-200", a directory, or a hub id.
        code: also fetch the Python files of a hub model (trust_remote_code).

    Raises:
        UsageError: nothing is called that; the nearest name is given.
        RunError: it exists and could not be fetched.
    """
    if name.startswith("kleash:"):
        return _own(name)
    if match := re.fullmatch(r"(.+)@step-(\d+)", name):
        return _step(Path(match[1]).expanduser(), int(match[2]))
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        raise UsageError(f"{name} is a file; give the directory that holds the model's config.json")
    if (moved := _moved(path)) is not None:
        return moved
    if _is_hub_id(name):
        return _from_hub(name, code)
    raise UsageError(f"there is no directory {name}{_hint(path)}")


def _own(name: str) -> Path:
    match name:
        case "kleash:tiny":
            return tiny_directory()
        case "kleash:smollm2":
            return smollm2.directory()
    raise UsageError(f"{name} is not one of kleash's own models; they are {' and '.join(KLEASH_MODELS)}")


def tiny_directory() -> Path:
    """The embedded model's directory inside the installed package."""
    return Path(str(files("kleash").joinpath("assets", "tiny")))


def _moved(path: Path) -> Path | None:
    """One of kleash's own models, recorded by a run on another machine or in another environment."""
    if path.parts[-3:] == ("kleash", "assets", "tiny"):
        return tiny_directory()
    if path.name == smollm2.DIRECTORY_NAME:
        return smollm2.directory()
    return None


def _step(run: Path, step: int) -> Path:
    checkpoint = run / "checkpoints" / f"step-{step:06d}"
    if checkpoint.is_dir():
        return checkpoint.resolve()
    if not run.is_dir():
        raise UsageError(f"there is no run directory {run}{_hint(run)}")
    kept = sorted(int(found.name[5:]) for found in run.glob("checkpoints/step-*") if found.name[5:].isdigit())
    had = ", ".join(map(str, kept)) if kept else "none"
    raise UsageError(f"the run {run} has no checkpoint of step {step}; it has: {had}")


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) is not None


def _hint(path: Path) -> str:
    """ "; did you mean …?" with the nearest sibling that exists, or nothing."""
    if not path.parent.is_dir():
        return ""
    siblings = [found.name for found in path.parent.iterdir() if found.is_dir()]
    near = get_close_matches(path.name, siblings, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def _from_hub(name: str, code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    near = get_close_matches(name, ("tiny", "smollm2"), n=1)
    hint = f"; did you mean kleash:{near[0]}?" if near else _hint(Path(name))
    try:
        return Path(snapshot_download(name, allow_patterns=_PATTERNS + ["*.py"] * code, ignore_patterns=_NOT))
    except GatedRepoError:
        raise RunError(
            f"the hub model {name} asks for permission: accept its terms there, then `hf auth login`"
        ) from None
    except RepositoryNotFoundError:
        raise UsageError(f"{name} is neither a directory here nor a model on the Hugging Face hub{hint}") from None
    except Exception as error:  # offline, blocked, cut off: the hub's client has a dozen ways to say so
        raise RunError(
            f"{name} is not a directory here, and the Hugging Face hub could not be reached to look for it "
            f"({type(error).__name__}){hint or '; give a local directory, or kleash:tiny'}"
        ) from None
