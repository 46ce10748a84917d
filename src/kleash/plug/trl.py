"""kleash in a TRL trainer: `trainer.add_callback(Leash(trainer, target="4 nats/sequence"))`. TRL 1.16.

Every `every` updates the policy writes after a few prompts, and its exact KL to the reference is measured there, on the
trainer's own model: at beta = 0 too, and in DPO. The run's log, findings and samples go to `OUTPUT_DIR/kleash`, which
`kleash watch` and `kleash report` read.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from kleash.beta import PI
from kleash.errors import RunError, UsageError
from kleash.monitor import Watched
from kleash.plug import prompts as asked
from kleash.plug import references
from kleash.plug.gauge import Gauge, Seen
from kleash.plug.rows import record
from kleash.plug.steering import Steering, check, check_pace
from kleash.records import Controller, ControllerState, Target
from kleash.runlog.findings import Finding, Found
from kleash.runlog.jsonl import Writer
from kleash.runlog.schema import Checkpoint, Evaluation, Event, Notice, Resume, RunEnd, RunStart, Sample

log = logging.getLogger("kleash")

STATE = "kleash.json"
#: Nats per token between policy and the trainer's own reference at step 0 that no rounding makes.
IDENTITY = 1e-3


@dataclass(kw_only=True, eq=False)
class Leash(TrainerCallback):
    """Watches a TRL trainer, and holds a KL target where its beta can.

    target: "4 nats/sequence" or "0.02 nats/token", held by moving the trainer's beta (GRPO and RLOO with beta > 0).
    budget: above it the run saves a checkpoint and stops. every: updates between measurements. prompts: texts or
    messages to write after; left out, the first of the training set. samples: how many are written, over at most as
    many prompts. reference: "start" (the policy as training begins), a model, or the name of one. on_finding: what a
    warning or an alarm of the monitor does. law: of beta. loosen: allows a looser target on resume. seed: of the noise.
    """

    trainer: Any = field(kw_only=False)
    target: str | None = None
    budget: str | None = None
    every: int = 10
    prompts: Sequence[Any] | None = None
    samples: int = 32
    max_new_tokens: int | None = None
    reference: Any = "start"
    on_finding: str = "warn"
    law: Controller = field(default_factory=PI)
    loosen: bool = False
    seed: int = 0
    readings: list[Seen] = field(default_factory=list, init=False)
    findings: list[Finding] = field(default_factory=list, init=False)
    stopped: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._aim = None if self.target is None else Target.parse(self.target)
        self._ceiling = None if self.budget is None else Target.parse(self.budget, "KL budget")
        self._watched: Watched | None = None
        if self.every < 1 or self.samples < 1:
            raise UsageError("every and samples must be at least 1")
        if self.on_finding not in ("warn", "save", "stop"):
            raise UsageError(f'on_finding = {self.on_finding!r} is no action here; use "warn", "save" or "stop"')
        if self.trainer.args.world_size > 1:
            raise UsageError(
                "the guest runs in one process; this trainer has more. Leave it out, or train on one device"
            )
        if self._aim is not None:
            check(self.trainer)
            check_pace(self.trainer, self.every)
        self._steering: Steering | None = None
        self._measured: int | None = None
        self._beta: float | None = None

    # ── what TRL calls ──────────────────────────────────────────────────────────────────────────────────

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, resumed = state.global_step, state.global_step > 0
        self._folder = Path(args.output_dir) / "kleash"
        self._policy = self.trainer.accelerator.unwrap_model(self.trainer.model)
        before = self._before(args, step) if resumed else {}
        self._reference = references.build(self.reference, self._policy, self._folder, resumed)
        self._gauge = self._made_gauge(args)
        self._events, self._samples = Writer(self._folder / "events.jsonl"), Writer(self._folder / "samples.jsonl")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if resumed:
            self._both(Resume(step=step, started=now))
        else:
            self._events.write(self._start(now))
        if self._aim is not None:
            self._steering = Steering.begin(self.trainer, self.law, self._aim)
            if before.get("state"):
                self._steering.state = ControllerState(**before["state"])
                self._steering.put()
        if not resumed:
            self._look(step, steer=False)
            self._own_reference(step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        beta = getattr(self.trainer, "beta", None)
        self._beta = None if beta is None else float(beta)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            self._look(state.global_step)
            self._act(state.global_step, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        row = record(logs or {}, state.global_step, self._beta)
        if row is not None:
            self._events.write(row)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        kept = {"target": self.target, "state": None if self._steering is None else asdict(self._steering.state)}
        (folder / STATE).write_text(json.dumps(kept) + "\n")
        last = self.readings[-1] if self.readings else None
        kl = last.per_sequence if last and self._measured == state.global_step else None
        self._events.write(Checkpoint(step=state.global_step, path=f"../{folder.name}", kl_ref=kl))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._measured != state.global_step:
            self._look(state.global_step, steer=False)
        self._judge(state.global_step, "warn")
        self._events.write(RunEnd(reason=self.stopped or "finished", step=state.global_step))
        self._events.close()
        self._samples.close()

    # ── what they do ────────────────────────────────────────────────────────────────────────────────────

    def _before(self, args: Any, step: int) -> dict[str, Any]:
        """What the checkpoint remembers of the leash.

        Raises:
            RunError: a target is to be held, and it remembers nothing.
            UsageError: the target is looser than it was, and `loosen` is off.
        """
        path = Path(args.output_dir) / f"checkpoint-{step}" / STATE
        if not path.is_file():
            if self._aim is None:
                return {}
            raise RunError(f"{path} is not there: beta's controller cannot go on from where it was; start anew")
        before = json.loads(path.read_text())
        then = None if before["target"] is None else Target.parse(before["target"])
        looser = then is not None and (self._aim is None or then.unit != self._aim.unit or self._aim.value > then.value)
        if looser and not self.loosen:
            raise UsageError(
                f"the run was held at {then}, and would go on with {self._aim or 'no target'}: a leash is loosened "
                "deliberately; say loosen=True"
            )
        return before

    def _made_gauge(self, args: Any) -> Gauge:
        limit = self.max_new_tokens or getattr(args, "max_completion_length", None) or 128
        prompts = asked.token_ids(self.trainer, self.prompts, self.samples)
        return Gauge(
            prompts=prompts,
            each=self.samples // len(prompts),
            tokenizer=asked.tokenizer_of(self.trainer),
            new_tokens=int(limit),
            temperature=float(getattr(args, "temperature", None) or 1.0),
            seed=self.seed,
        )

    def _start(self, now: str) -> RunStart:
        kind = type(self.trainer).__name__
        asked_for = {"target": self.target, "budget": self.budget, "every": self.every, "on_finding": self.on_finding}
        beta = getattr(self.trainer.args, "beta", None)
        return RunStart(
            config={"guest_of": kind, "beta": beta, **asked_for, "temperature": self._gauge.temperature},
            started=now,
            verb=f"{kind} of TRL",
            versions={name: version(name) for name in ("kleash", "trl", "transformers", "torch")},
            fingerprints={"reference": {"kind": type(self._reference).__name__, "asked": str(self.reference)[:200]}},
        )

    def _both(self, event: Event) -> None:
        self._events.write(event)
        self._samples.write(event)

    def _look(self, step: int, steer: bool = True) -> None:
        seen = self._gauge.read(self._policy, self._reference, step)
        self.readings.append(seen)
        self._measured = step
        self._events.write(
            Evaluation(
                step=step,
                how=f"sampled at temperature {self._gauge.temperature:g}",
                n_prompts=len(self._gauge.prompts),
                n_samples=len(seen.text),
                target=self.target,
                kl_ref=seen.per_sequence,
                kl_ref_token=seen.per_token,
                length=sum(seen.length) / len(seen.length),
                truncated=seen.truncated,
            )
        )
        texts = [self._gauge.plain(list(ids)) for ids in self._gauge.prompts for _ in range(self._gauge.each)]
        for prompt, text, kl, length in zip(texts, seen.text, seen.kl, seen.length, strict=True):
            self._samples.write(Sample(step=step, prompt=prompt, completion=text, kl_ref=kl, length=length))
        if steer and self._steering is not None and self._aim is not None:
            self._steering.move(seen.per_token if self._aim.unit == "nats/token" else seen.per_sequence)

    def _own_reference(self, step: int) -> None:
        """The trainer's own reference is loaded by name: is it the policy that training starts from?"""
        own = getattr(self.trainer, "ref_model", None)
        if own is None:
            return
        other = self.trainer.accelerator.unwrap_model(own)
        apart = self._gauge.read(self._policy, references.Given(other), step).per_token.value
        if apart > IDENTITY:
            text = (
                f"the trainer's own reference is {apart:.3g} nats/token from the policy that training starts from: its "
                "`kl` and its penalty are not measured from the start"
            )
            self._events.write(Notice(what="reference", text=text, step=step))
            log.warning("kleash: %s", text)

    def _act(self, step: int, control: Any) -> None:
        """The budget, then the monitor."""
        last = self.readings[-1]
        value = None if self._ceiling is None else (
            last.per_token if self._ceiling.unit == "nats/token" else last.per_sequence
        ).value  # fmt: skip
        if self._ceiling is not None and value is not None and value > self._ceiling.value:
            self.stopped = "budget"
            log.warning("kleash: KL %.4g is above the budget of %s: saved and stopped", value, self._ceiling)
            control.should_save = control.should_training_stop = True
        if self._judge(step, self.on_finding) and self.on_finding != "warn":
            control.should_save = True
            if self.on_finding == "stop":
                self.stopped = self.stopped or f"finding: {self.findings[-1].rule}"
                control.should_training_stop = True

    def _judge(self, step: int, action: str) -> bool:
        """Runs the monitor on the log as it is on disk; True where a warning or an alarm is new."""
        told = {finding.rule for finding in self.findings}
        try:
            self._watched = self._watched or Watched(self._folder, budget=self._ceiling)
            said = self._watched.look()[1]
        except RunError:  # no row yet
            return False
        new = [f for f in said.findings if f.severity != "note" and f.rule not in told]
        for finding in new:
            self.findings.append(finding)
            self._events.write(Found(step=step, action=action, finding=finding))
            log.warning("kleash: %s since step %d: %s", finding.headline, finding.since, finding.what)
        return bool(new)
