"""How a judge is asked: by which rubric, and how often. The args of `use = "judge:…"`; an API key is none of them."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kleash.errors import UsageError
from kleash.models.spec import DType

Mode = Literal["pairwise", "grade"]
Rivals = Literal["all", "anchor"]
#: Fields that only a server has a use for, beside those every judge has.
OF_A_SERVER = (
    "model", "samples", "temperature", "max_tokens", "concurrency", "timeout_s", "retries", "api_key_env", "price_in",
    "price_out",
)  # fmt: skip
OF_A_LOCAL_MODEL = ("dtype", "batch_tokens")
OF_PAIRS = ("swap", "ties", "reference", "rivals")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec:
    """How a judge is asked.

    rubric: the written constitution, as text, or the .md or .txt file that holds it.
    mode: "pairwise", which of two answers is better, as a probability; "grade", one answer from 1 to `grades`.
    reference: pairwise, as a reward: the column with an answer that each sample is compared with.
    rivals: pairwise, as a reward without `reference`: which samples of its prompt each one is compared with: "all",
        "anchor" (the first), or a number of neighbours in a ring, an even one.
    swap: each pair is asked in both orders and averaged. ties: the judge may call a pair equally good.
    least_mass: probability that must lie on the allowed verdicts; below it the judge is not answering.
    samples: answers to each question, whose frequencies count; of a server that is sampled at `temperature`.
    max_tokens: of a server's answer; more than 1 lets it reason first, the verdict alone on its last line.
    model: by which name the server knows the model. api_key_env: the environment variable that holds the key.
    price_in, price_out: per million tokens, for the report.
    cache: true, a file of kleash's cache directory; or a file; false, none.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    rubric: str
    mode: Mode = "pairwise"
    grades: int = 5
    reference: str | None = None
    rivals: Rivals | int = "all"
    swap: bool = True
    ties: bool = False
    least_mass: float = 0.05
    model: str | None = None
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 1
    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 4
    api_key_env: str | None = None
    price_in: float | None = None
    price_out: float | None = None
    dtype: DType = "float32"
    batch_tokens: int = 16384
    cache: bool | str = True

    def __post_init__(self) -> None:
        if not 2 <= self.grades <= 9:
            raise UsageError(f"judge: grades = {self.grades} must be from 2 to 9, for a grade is one digit")
        if not 0 <= self.least_mass < 1:
            raise UsageError(f"judge: least_mass = {self.least_mass} must be at least 0 and below 1")
        for name in ("samples", "max_tokens", "concurrency", "batch_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"judge: {name} = {getattr(self, name)} must be at least 1")
        for name in ("temperature", "retries", "price_in", "price_out"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"judge: {name} = {getattr(self, name)} must be 0 or more")
        if self.timeout_s <= 0:
            raise UsageError(f"judge: timeout_s = {self.timeout_s} must be above 0")
        if self.samples > 1 and self.temperature == 0:
            raise UsageError("judge: at temperature 0 every sample is the same; give a temperature, or samples = 1")
        if isinstance(self.rivals, int) and (self.rivals < 2 or self.rivals % 2):
            raise UsageError(
                f"judge: rivals = {self.rivals} must be an even number, as many on either side in the ring"
            )
        if self.reference is not None and self.rivals != "all":
            raise UsageError("judge: reference and rivals are two ways to choose an opponent; keep one of them")
        if (self.price_in is None) != (self.price_out is None):
            raise UsageError("judge: price_in and price_out belong together; give both")
        if self.mode == "grade" and (unused := self._turned(OF_PAIRS)):
            raise UsageError(f'judge: {unused[0]} is for pairs, and mode = "grade" asks for one answer at a time')
        if self.mode == "pairwise" and (unused := self._turned(("grades",))):
            raise UsageError(f'judge: {unused[0]} has no effect without mode = "grade"')
        _check_key(self.api_key_env)

    def _turned(self, names: tuple[str, ...]) -> list[str]:
        standard = {field.name: field.default for field in fields(self)}
        return [name for name in names if getattr(self, name) != standard[name]]

    def check_for(self, name: str) -> None:
        """That nothing is asked of the judge called `name` that its kind has no use for.

        Raises:
            UsageError: there is something; or a secret is in its address.
        """
        kind = kind_of(name)
        unused = self._turned(
            OF_A_LOCAL_MODEL if kind == "server" else OF_A_SERVER if kind == "local" else OF_A_SERVER + OF_A_LOCAL_MODEL
        )
        if unused:
            whose = {"server": "a model in this process", "local": "a server", "function": "a model or a server"}[kind]
            raise UsageError(f"judge: {unused[0]} is for {whose}, and the judge is {_called[kind]}; leave it out")
        if kind == "server":
            address = urlsplit(name)
            if address.username or address.password or address.query:
                raise UsageError(
                    "judge: its address holds a user, a password or a query, and would be written to logs; put the key "
                    "into an environment variable and name that in api_key_env"
                )
            if self.model is None:
                raise UsageError(f'judge {name}: a server serves models by name; give args = {{ model = "…" }}')


_called = {"server": "a server", "local": "a model in this process", "function": "a function"}
_ARGS = TypeAdapter(JudgeSpec)
_SECRET = re.compile(r"key|token|secret|password|authori[sz]ation|bearer|header|credential", re.IGNORECASE)


def kind_of(name: str) -> Literal["server", "local", "function"]:
    """What a judge's name stands for: an address, a Python function ("./judge.py:strict"), else a model."""
    if name.lower().startswith(("http://", "https://")):
        return "server"
    place, _, function = name.rpartition(":")
    return "function" if place.endswith(".py") and function else "local"


def judge_spec(args: dict[str, Any]) -> JudgeSpec:
    """The args of a judge, checked.

    Raises:
        UsageError: a field is unknown or wrong; an API key is among them. No message repeats a value that may be one.
    """
    known = {field.name for field in fields(JudgeSpec)}
    if secret := next((name for name in args if name not in known and _SECRET.search(name)), None):
        raise UsageError(
            f"judge: args.{secret}: a key in the config would be written to logs and run directories; put it into an "
            'environment variable and name that, as in api_key_env = "JUDGE_KEY"'
        )
    try:
        return _ARGS.validate_python(args)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:1]))
        raise UsageError(f"judge: args.{place}: {first['msg']}; it takes {', '.join(sorted(known))}") from None


def _check_key(name: str | None) -> None:
    if name is not None and (not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or len(name) > 60):
        raise UsageError(
            "judge: api_key_env is the name of an environment variable, such as JUDGE_KEY, and this is none; a key "
            "itself must not be in the config"
        )


def rubric_text(rubric: str) -> str:
    """The rubric, from its file if it names one.

    Raises:
        UsageError: there is no such file, or nothing in it.
    """
    path = Path(rubric).expanduser() if "\n" not in rubric and len(rubric) < 500 else None
    text = rubric
    if path is not None and path.suffix in (".md", ".txt"):
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"judge: the rubric {rubric} cannot be read: {error}") from None
    if not text.strip():
        raise UsageError("judge: the rubric is empty; say in words which answer is the better one")
    return text.strip()
