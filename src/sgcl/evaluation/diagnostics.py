"""What can be said of embeddings without labels."""

from __future__ import annotations

from torch import Tensor

from sgcl.functional import alignment, effective_rank, spread


def diagnose(embeddings: Tensor, edge_index: Tensor | None = None) -> dict[str, float]:
    """Effective rank, spread, and, given the graph, alignment (:mod:`sgcl.functional`)."""
    found = {"effective_rank": effective_rank(embeddings), "spread": spread(embeddings)}
    return found if edge_index is None else {**found, "alignment": alignment(embeddings, edge_index)}
