"""The reference's log-probs of fixed rows, kept on disk: computed once, read by every run that has the same of both.

A file is named by what it holds: the reference's fingerprint and the token ids of the rows. What is read is verified,
and what does not verify is computed again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kleash.errors import RunError
from kleash.models.answers import Encoded
from kleash.models.fingerprint import tensors_digest
from kleash.models.frozen import Reference
from kleash.models.plan import Plan
from kleash.models.smollm2 import cache_root
from kleash.models.tensor_files import save_whole
from kleash.tensors import Rollout
from kleash.training.passes import ByPlan, spans

#: Of the file's form; another one is another name.
FORM = 1


@dataclass(slots=True)
class ReferenceCache:
    """log π_ref of every counted token of `rows`, one after the other; None before the first use."""

    reference: Reference
    rows: Encoded
    batch: int
    device: torch.device
    kept: Float[Tensor, " n"] | None = None

    def of(self, index: Sequence[int], rollout: Rollout) -> Float[Tensor, "B T"]:
        """Those of the prompts of `index`, laid out as in their rollout; 0 where nothing counts."""
        assert self.kept is not None, "filled before it is used"
        starts, G = self._starts(), self.rows.group_size
        values = torch.cat([self.kept[starts[i * G] : starts[(i + 1) * G]] for i in index]).to(self.device)
        return torch.zeros(rollout.mask.shape, dtype=values.dtype, device=self.device).masked_scatter(
            rollout.mask, values
        )

    def fill(self, by_plan: ByPlan, folder: Path | None = None) -> str | None:
        """Reads them, or computes and writes them. In words, which; None where they are there already."""
        if self.kept is not None:
            return None
        path = (folder or cache_root() / "reference-logprobs") / f"{self.key[:32]}.safetensors"
        wrong = None
        if path.exists():
            found = _read(path, self.key, self._starts()[-1])
            if isinstance(found, Tensor):
                self.kept = found
                return f"the reference's log-probs are read from {path}"
            wrong = f"{path} is not used, for {found}; it is computed again. "
        self.kept = by_plan(self._computed)
        said = _written(path, self.kept, self.key)
        return f"{wrong or ''}the reference's log-probs of {len(self.rows)} prompts' answers {said}"

    @property
    def key(self) -> str:
        """Of the reference and of the tokens."""
        what = {"form": FORM, "reference": self.reference.fingerprint, "rows": self.rows.digest}
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    @torch.no_grad()
    def _computed(self, plan: Plan) -> Float[Tensor, " n"]:
        parts = []
        with self.reference.running() as policy:
            for first, last in spans(len(self.rows), min(self.batch, plan.groups or self.batch)):
                rollout = self.rows.rollout(range(first, last), self.device)
                parts.append(policy(rollout, path=plan.path, rows=plan.rows).logprobs[rollout.mask].cpu())
        return torch.cat(parts)

    def _starts(self) -> list[int]:
        """Where each row begins, and where the last one ends."""
        places = [0]
        for answers in self.rows.answers:
            for ids in answers:
                places.append(places[-1] + len(ids))
        return places


def _read(path: Path, key: str, count: int) -> Float[Tensor, " n"] | str:
    """The log-probs, or why they are not what they should be."""
    try:
        with safe_open(path, "pt") as file:
            meta, found = file.metadata() or {}, file.get_tensor("logprobs")
    except (SafetensorError, OSError) as error:
        return f"it cannot be read ({error})"
    if meta.get("key") != key or found.shape != (count,):
        return "it is of another reference or of other rows"
    if meta.get("digest") != tensors_digest([("logprobs", found)]):
        return "its content is not what was written"
    return found


def _written(path: Path, values: Float[Tensor, " n"], key: str) -> str:
    if not bool(values.isfinite().all()):
        raise RunError("the reference gives log-probs that are not finite: its weights are broken")
    meta = {"key": key, "digest": tensors_digest([("logprobs", values)])}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_whole(path, {"logprobs": values}, meta)
    except OSError as error:
        return f"are computed; they could not be written to {path}: {error.strerror}"
    return f"are computed and kept in {path}"
