"""[log]: boards that a run's figures also go to."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from kleash.errors import UsageError
from kleash.runlog.boards import BoardName
from kleash.training.section import STRICT


def _one_or_several(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """[log]: where a run's figures go besides its own log, which is always written.

    to: "tensorboard", "wandb", "trackio", one or several of them. project: under which W&B and trackio file it.
    """

    __pydantic_config__ = STRICT

    to: Annotated[tuple[BoardName, ...], BeforeValidator(_one_or_several)] = ()
    project: str = "kleash"

    def __post_init__(self) -> None:
        if len(set(self.to)) < len(self.to):
            raise UsageError(f"log.to = {list(self.to)} names a board twice")
        if not self.project.strip():
            raise UsageError("log.project is empty; give it a name, or leave it out")
