"""When to stop without labels: neighbourhoods that no longer change, or embeddings that lose directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from sgcl.functional import effective_rank

SAMPLE = 2000
"""Nodes among which neighbours are looked for."""

NEIGHBOURS = 10


@dataclass(frozen=True)
class StopRule:
    """What counts as enough.

    Attributes:
        every: steps between looks.
        settled: share of the nearest neighbours of a look that are still there at the next one, from which on more
            training changes little.
        lost: share of the highest effective rank so far below which directions are being lost; then the weights of
            the look with the highest rank are taken back.
    """

    every: int = 50
    settled: float = 0.9
    lost: float = 0.5


class Watch:
    """Looks at embeddings now and then, remembers the look of the highest rank, and says when to stop."""

    def __init__(self, rule: StopRule) -> None:
        self.rule = rule
        self.neighbours: Tensor | None = None
        self.best: dict[str, Tensor] = {}
        self.best_rank, self.best_step = 0.0, 0

    def look(self, step: int, embeddings: Tensor, encoder: nn.Module) -> tuple[float | None, str | None]:
        """The share of neighbours that stayed since the last look, and, if it is time to stop, why.

        Where directions are lost, ``encoder`` gets the weights of the best look back.
        """
        found, before = nearest(embeddings), self.neighbours
        self.neighbours = found
        rank = effective_rank(embeddings)
        if rank >= self.best_rank:
            self.best = {name: value.clone() for name, value in encoder.state_dict().items()}
            self.best_rank, self.best_step = rank, step
        agreement = None if before is None else stayed(before, found)
        if rank < self.rule.lost * self.best_rank:
            encoder.load_state_dict(self.best)
            return agreement, (
                f"the effective rank fell from {self.best_rank:.0f} to {rank:.0f}; kept the weights of step "
                f"{self.best_step}, where it was highest"
            )
        if agreement is not None and agreement >= self.rule.settled:
            return agreement, f"{agreement:.0%} of nearest neighbours stayed since step {step - self.rule.every}"
        return agreement, None

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What :meth:`load` needs."""
        tensors = {f"best.{name}": value for name, value in self.best.items()}
        if self.neighbours is not None:
            tensors["neighbours"] = self.neighbours
        return tensors, {"best_rank": self.best_rank, "best_step": self.best_step}

    def load(self, tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
        """Go on from a :meth:`state`."""
        self.neighbours = tensors.get("neighbours")
        self.best = {name.removeprefix("best."): value for name, value in tensors.items() if name != "neighbours"}
        self.best_rank, self.best_step = float(note["best_rank"]), int(note["best_step"])


def nearest(embeddings: Tensor) -> Tensor:
    """The nearest neighbours ``[n, 10]``, by cosine of centred rows, of nodes spread evenly over all, among these."""
    rows = F.normalize(embeddings - embeddings.mean(dim=0), dim=1)
    rows = rows[:: -(-len(rows) // SAMPLE)]
    similar = rows @ rows.T
    similar.fill_diagonal_(-2)
    return similar.topk(min(NEIGHBOURS, len(rows) - 1), dim=1).indices.cpu()  # where a checkpoint is read to


def stayed(before: Tensor, after: Tensor) -> float:
    """Share of the neighbours ``before`` that are among those ``after``."""
    return (before.unsqueeze(2) == after.unsqueeze(1)).any(dim=2).double().mean().item()
