"""Settings for a graph that nobody tuned for: short runs, compared without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgcl.augment import DropEdges
from sgcl.data import Source
from sgcl.errors import InputError, TrainingStopped
from sgcl.functional import effective_rank
from sgcl.graph import View
from sgcl.methods import Method
from sgcl.pipeline import Run, Settings, check_unfinished, first_difference, pick_device, seeded
from sgcl.stopping import nearest, stayed
from sgcl.store import read_json, write_json

TRIALS = "tuning.json"
STEPS = 100
"""Length of a short run."""

LOST = 0.5
"""Share of the highest effective rank below which a candidate is out: what has collapsed is stable, too."""

CANDIDATES: dict[str, tuple[dict[str, float], ...]] = {  # in the order of trial; {} is the recipe as it is
    "duo": (
        {},
        {"edge_drop": 0.5},
        {"lr": 3e-3},
        {"lr": 3e-4},
        {"edge_drop": 0.95},
        {"feature_drop": 0.2},
        {"edge_drop": 0.2},
    ),
    "sgcl": (
        {},
        {"edge_drop": 0.8, "feature_drop": 0.0},
        {"edge_drop": 0.9, "feature_drop": 0.2},
        {"edge_drop": 0.2, "feature_drop": 0.1},
        {"edge_drop": 0.5, "feature_drop": 0.5},
        {"edge_drop": 0.8, "feature_drop": 0.6},
        {"lr": 1e-4},
        {"lr": 2e-3},
    ),
}


@dataclass(frozen=True)
class Trial:
    """A short run.

    Attributes:
        changes: values that differ from the recipe's.
        stability: see :func:`stability`; ``None`` where training stopped with an error.
        effective_rank: of what was learned.
        seconds: of training.
    """

    changes: dict[str, float]
    stability: float | None
    effective_rank: float
    seconds: float

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.changes.items()) or "the recipe"


@dataclass(frozen=True)
class Budget:
    """What tuning may do.

    Attributes:
        runs: number of short runs.
        fixed: names of values that the user has chosen.
        device: see :func:`sgcl.pipeline.pick_device`.
        encoder: see :class:`sgcl.pipeline.Run`.
    """

    runs: int
    fixed: frozenset[str] = frozenset()
    device: str = "auto"
    encoder: nn.Module | None = None

    def candidates(self, method: str) -> list[dict[str, float]]:
        """The first candidates for a method that leave the fixed values alone.

        Raises:
            InputError: there is nothing to choose from.
        """
        free = [one for one in CANDIDATES.get(method, ()) if not self.fixed & set(one)]
        if self.runs < 2 or len(free) < 2:
            raise InputError(
                f"tune: needs at least 2 short runs and 2 candidates, got {self.runs} and {len(free)} for {method!r}; "
                "leave edge_drop, feature_drop or lr open, or do without tuning"
            )
        return free[: self.runs]


def tuned(
    source: Source,
    settings: Settings,
    budget: Budget,
    folder: Path | None = None,
    resume: bool = False,
    on_trial: Callable[[Trial], None] = lambda trial: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[Settings, list[Trial]]:
    """The settings with the values of the best candidate, and all trials, which ``folder`` keeps for ``resume``.

    Raises:
        KeyboardInterrupt: ``should_stop`` said so.
    """
    candidates = budget.candidates(settings.method)
    identity = {"settings": settings.as_dict(), "graph": source.fingerprint, "candidates": candidates}
    if folder:
        check_unfinished(folder, resume)
    found = _kept(folder, identity) if folder and resume else []
    if not found:
        for trial in trials(source, settings, budget, should_stop):
            found.append(trial)
            on_trial(trial)
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / TRIALS, {**identity, "trials": [asdict(one) for one in found]})
    changes: dict[str, Any] = best(found).changes
    return replace(settings, recipe=replace(settings.recipe, **changes)), found


def _kept(folder: Path, identity: dict[str, Any]) -> list[Trial]:
    """The trials that a folder holds, if they are those of the same graph, settings and candidates.

    Raises:
        InputError: the file cannot be read.
    """
    if not (folder / TRIALS).exists():
        return []
    kept = read_json(folder / TRIALS)
    if first_difference(kept, identity):
        return []
    try:
        return [Trial(**one) for one in kept["trials"]]
    except (KeyError, TypeError):
        raise InputError(f"{folder / TRIALS}: holds no trials that can be read; delete it to try anew") from None


def trials(
    source: Source, settings: Settings, budget: Budget, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Trial]:
    """Try candidates one after the other, each by a run of :data:`STEPS` steps with the same seed."""
    for changes in budget.candidates(settings.method):
        values: dict[str, Any] = {"steps": STEPS, **changes}
        short = replace(settings, recipe=replace(settings.recipe, **values), early_stop=False)
        run = Run(source, short, device=budget.device, encoder=budget.encoder)
        try:
            run(should_stop=should_stop)
        except TrainingStopped:
            yield Trial(changes, None, 0.0, 0.0)
            continue
        if not run.finished:
            raise KeyboardInterrupt
        view = View.of(source.data).to(pick_device(budget.device))
        rank = effective_rank(run.method.represented(view))
        with seeded(settings.seed):
            yield Trial(changes, stability(run.method, view), rank, run.history[-1]["seconds"])


@torch.no_grad()
def stability(method: Method, graph: View, dropped: float = 0.5) -> float:
    """Share of nearest neighbours that two thinned views of a graph agree on, by what has been learned.

    What an encoder reads off a node's whole surroundings survives the loss of some edges; what hangs on single ones,
    and noise, does not. Draws from torch's global generator.
    """
    thin = DropEdges(dropped)
    one, other = (nearest(method.represented(thin(graph))) for _ in range(2))
    return stayed(one, other)


def best(found: Sequence[Trial]) -> Trial:
    """The most stable trial among those that use at least half as many directions as the one that uses most.

    Raises:
        TrainingStopped: none was trained to its end.
    """
    alive = [one for one in found if one.stability is not None]
    if not alive:
        raise TrainingStopped("tune: no candidate could be trained; look for extreme values in the features")
    most = max(one.effective_rank for one in alive)
    return max((one for one in alive if one.effective_rank >= LOST * most), key=lambda one: one.stability or 0.0)
