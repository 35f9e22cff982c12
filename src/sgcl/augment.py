"""Augmentations: PyG transforms that take a graph (``Data`` or :class:`sgcl.graph.View`) and return a new one."""

from __future__ import annotations

from typing import TypeVar

from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from sgcl.errors import InputError
from sgcl.graph import View, drop_columns, drop_edges

Graph = TypeVar("Graph", View, Data)


class DropEdges(BaseTransform):  # type: ignore[misc]  # PyG is untyped here
    """Remove every ordered pair with probability ``p``, the two directions of an edge independently (Eq. 8)."""

    def __init__(self, p: float) -> None:
        self.p = _share("DropEdges", p, "edges removed, Eq. 8")

    def forward(self, graph: Graph) -> Graph:
        """A graph with fewer edges."""
        if self.p == 0:
            return graph
        if isinstance(graph, View):
            return graph.replace(edge_index=drop_edges(graph.edge_index, self.p))
        graph.edge_index = drop_edges(graph.edge_index, self.p)
        return graph

    def __repr__(self) -> str:
        return f"DropEdges(p={self.p})"


class DropFeatures(BaseTransform):  # type: ignore[misc]  # PyG is untyped here
    """Set feature columns to zero with probability ``p``, the same columns in all nodes, no rescaling (Eq. 9)."""

    def __init__(self, p: float) -> None:
        self.p = _share("DropFeatures", p, "feature columns removed, Eq. 9")

    def forward(self, graph: Graph) -> Graph:
        """A graph with zeroed feature columns."""
        if self.p == 0:
            return graph
        if isinstance(graph, View):
            mask = drop_columns(graph.features.shape[1], self.p, graph.edge_index.device, graph.dtype)
            return graph.replace(feature_mask=mask if graph.feature_mask is None else mask * graph.feature_mask)
        mask = drop_columns(graph.x.shape[1], self.p, graph.x.device, graph.x.dtype)
        graph.x = View(graph.x, graph.edge_index, feature_mask=mask).x
        return graph

    def __repr__(self) -> str:
        return f"DropFeatures(p={self.p})"


def _share(owner: str, p: float, meaning: str) -> float:
    if not 0 <= p < 1:
        raise InputError(f"{owner}: p must lie in [0, 1), got {p!r} (share of {meaning})")
    return p
