"""The one training loop: any method, the whole graph or batches of it, resumable to the bit."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from sgcl.buffers import Buffers
from sgcl.errors import InputError, TrainingStopped
from sgcl.functional import effective_rank, spread, warmup_cosine
from sgcl.graph import View
from sgcl.methods.base import Method
from sgcl.stopping import StopRule, Watch
from sgcl.store import read_tensors, write_tensors


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast to learn.

    Attributes:
        steps: number of updates.
        lr: peak learning rate of AdamW.
        weight_decay: decoupled decay, on every parameter.
        warmup: steps of linear warm-up before the cosine.
        log_every: label-free signals are computed every so many steps.
        stop: end before ``steps`` when these signals say so; ``None`` never does.
    """

    steps: int = 300
    lr: float = 5e-4
    weight_decay: float = 1e-5
    warmup: int = 30
    log_every: int = 10
    stop: StopRule | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("lr", 0), ("weight_decay", 0), ("warmup", 0), ("log_every", 1)):
            value = getattr(self, name)
            if not (value >= least and math.isfinite(value)):
                raise InputError(f"training: {name} must be at least {least}, got {value!r}")


@dataclass(frozen=True)
class Step:
    """The record of one step; the signals are there on logged steps only.

    Attributes:
        step: 1 to ``steps``.
        loss: the loss before the update, a detached scalar tensor (reading it waits for the device).
        lr: learning rate of the update.
        seconds: training time so far, resumed parts included.
        effective_rank: directions in use (:func:`sgcl.functional.effective_rank`).
        spread: scatter of the representations (:func:`sgcl.functional.spread`).
        agreement: share of nearest neighbours that stayed since the last look (:mod:`sgcl.stopping`).
    """

    step: int
    loss: torch.Tensor
    lr: float
    seconds: float
    effective_rank: float | None = None
    spread: float | None = None
    agreement: float | None = None

    def record(self) -> dict[str, Any]:
        """Plain values, as written to ``metrics.jsonl``."""
        values = {
            "step": self.step,
            "loss": self.loss.item(),
            "lr": self.lr,
            "effective_rank": self.effective_rank,
            "spread": self.spread,
            "seconds": round(self.seconds, 4),
        }
        return values if self.agreement is None else {**values, "agreement": self.agreement}


class Training:
    """An iterable over the steps of one run, which can be saved between any two of them.

    Random numbers come from torch's global generator: seed it before (``torch.manual_seed``), and do not draw from it
    between steps if the run is to be repeatable.
    """

    def __init__(self, method: Method, batches: View | Data | Iterable[View], config: TrainConfig) -> None:
        self.method, self.config = method, config
        whole = isinstance(batches, (View, Data))
        self._batches: list[View] = [View.of(batches)] if whole else list(batches)  # type: ignore[arg-type]
        if not self._batches:
            raise InputError("training: no batches; give a graph or at least one view")
        # Fused: one pass over each parameter and its moments.
        self.optimizer = torch.optim.AdamW(
            method.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
        self.step, self.seconds = 0, 0.0
        self.stopped: str | None = None
        """Why training ended before the last step, if it did."""
        self._watch = Watch(config.stop) if config.stop else None

    def __iter__(self) -> Iterator[Step]:
        """Run the remaining steps.

        Raises:
            TrainingStopped: the loss is not finite, or the representations have collapsed.
        """
        method, config = self.method, self.config
        method.train()
        reused = Buffers()
        started = time.perf_counter() - self.seconds
        if self.step == 0:
            with reused():
                method.prepare(method.augment(batch) for batch in self._batches)  # lines 1-2
        batches = itertools.islice(itertools.cycle(self._batches), self.step % len(self._batches), None)
        for step, batch in zip(range(self.step + 1, config.steps + 1), batches, strict=False):
            if self.stopped:
                return
            lr = warmup_cosine(step, peak=config.lr, warmup=config.warmup, total=config.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            with reused():
                views = method.augment(batch)  # line 4
                loss = method.loss(views)  # lines 5-7
                loss.backward()
                self.optimizer.step()  # line 8
                self.optimizer.zero_grad()  # now, so that the next pass has the gradients' memory
                method.update(views)  # line 9
            del views
            self.step = step
            logged = step % config.log_every == 0 or step in (1, config.steps)
            signals = self._signals(loss) if logged else {}
            if self._watch and step % self._watch.rule.every == 0 and step < config.steps:
                seen = method.represented(self._batches[0])
                signals["agreement"], self.stopped = self._watch.look(step, seen, method.encoder)
            self.seconds = time.perf_counter() - started
            yield Step(step, loss.detach(), lr, self.seconds, **signals)
            started = time.perf_counter() - self.seconds  # the caller's time is not training time

    def _signals(self, loss: torch.Tensor) -> dict[str, Any]:
        monitored = self.method.monitored()
        scatter = spread(monitored)
        if not (math.isfinite(loss.item()) and math.isfinite(scatter)):
            raise TrainingStopped(
                f"step {self.step}: numbers are no longer finite (loss {loss.item():g}, spread {scatter:g}); "
                f"try a lower lr (now {self.config.lr:g}), and look for extreme values in the features"
            )
        if scatter < 1e-3:
            raise TrainingStopped(
                f"step {self.step}: the embeddings of all nodes have become the same (spread {scatter:.1e}); "
                f"try a lower lr (now {self.config.lr:g}), fewer dropped edges and features, or fewer steps"
            )
        return {"effective_rank": effective_rank(monitored), "spread": scatter}

    def save(self, path: Path, note: dict[str, Any] | None = None) -> None:
        """Write everything that the rest of the run depends on into one file, replacing it at once."""
        tensors = {f"method.{name}": value for name, value in self.method.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        state = {"step": self.step, "seconds": self.seconds, "stopped": self.stopped}
        if self._watch:
            watched, state["watch"] = self._watch.state()
            tensors |= {f"watch.{name}": value for name, value in watched.items()}
        write_tensors(path, tensors, {**(note or {}), **state})

    def load(self, path: Path) -> dict[str, Any]:
        """Continue where :meth:`save` was called; returns the note given there.

        Raises:
            InputError: the file cannot be read or belongs to another model.
        """
        tensors, note = read_tensors(path)
        parts: dict[str, dict[str, torch.Tensor]] = {"method": {}, "optimizer": {}, "random": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts.setdefault(part, {})[rest] = value
        try:
            self.method.load_state_dict(parts["method"])
            state: dict[int, dict[str, torch.Tensor]] = {}
            for name, value in parts["optimizer"].items():
                index, key = name.split(".")
                state.setdefault(int(index), {})[key] = value
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
            torch.set_rng_state(parts["random"]["cpu"])
            if "cuda" in parts["random"] and torch.cuda.is_available():
                torch.cuda.set_rng_state(parts["random"]["cuda"])
            self.step, self.seconds, self.stopped = int(note["step"]), float(note["seconds"]), note.get("stopped")
            if self._watch:
                self._watch.load(parts.get("watch", {}), note["watch"])
        except (RuntimeError, KeyError, ValueError) as error:
            raise InputError(f"{path}: is not a checkpoint of this model ({error})") from None
        return note


def train(method: Method, graph: View | Data | Iterable[View], config: TrainConfig | None = None) -> Training:
    """Train ``method`` on a whole graph, or on batches of it, lazily: iterate to run.

    Example:
        >>> for step in train(method, graph, TrainConfig(steps=100)):  # doctest: +SKIP
        ...     print(step.step, step.loss.item())
    """
    return Training(method, graph, config or TrainConfig())
