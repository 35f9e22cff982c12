r"""Graphs as a training step sees them: views, the normalised adjacency, and dropping.

Shapes: ``N`` nodes, ``E`` ordered pairs, ``F`` features. A pair is a column ``(sender, receiver)`` of
``edge_index``, as in PyTorch Geometric; an undirected edge is two pairs.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from sgcl.kernels import SparseMatrix, build_csr, kept_columns, product, spaced_pairs


class View:
    """A graph that any PyG module can read (``x``, ``edge_index``), keeping what is expensive once computed.

    Views are not changed after they are made; :meth:`replace` makes another one.

    Args:
        x: features ``[N, F]``, dense or a torch CSR tensor.
        edge_index: ordered pairs ``[2, E]``.
        n_id: which nodes of the whole graph these are, ``[N]``; ``None`` means all, in order.
        feature_mask: factor per feature column, ``[F]``; ``None`` means all ones.
    """

    def __init__(
        self,
        x: Tensor | SparseMatrix,
        edge_index: Tensor,
        n_id: Tensor | None = None,
        feature_mask: Tensor | None = None,
    ) -> None:
        self.features = SparseMatrix.from_torch(x) if isinstance(x, Tensor) and is_csr(x) else x
        self.edge_index, self.n_id, self.feature_mask = edge_index, n_id, feature_mask
        self._averages: dict[torch.dtype, Tensor] = {}
        self._conversions: dict[torch.dtype, Tensor] = {}

    @classmethod
    def of(cls, graph: View | Data) -> View:
        """The view of a whole PyG graph, without augmentation; a view is returned as it is."""
        return graph if isinstance(graph, View) else cls(graph.x, graph.edge_index, graph.get("n_id"))

    def replace(self, **changes: Any) -> View:
        """A view that differs in the given constructor arguments and shares everything else."""
        parts = {
            "x": self.features,
            "edge_index": self.edge_index,
            "n_id": self.n_id,
            "feature_mask": self.feature_mask,
        }
        made = View(**{**parts, **changes})
        if made.features is self.features:
            made._conversions = self._conversions
        return made

    def to(self, device: torch.device | str) -> View:
        """The view on another device."""
        features = self.features.csr if isinstance(self.features, SparseMatrix) else self.features
        parts = (self.edge_index, self.n_id, self.feature_mask)
        edge_index, n_id, mask = (None if part is None else part.to(device) for part in parts)
        assert edge_index is not None
        return View(features.to(device), edge_index, n_id, mask)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.features.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the features, in which everything is computed."""
        return self.features.values.dtype if isinstance(self.features, SparseMatrix) else self.features.dtype

    @cached_property
    def x(self) -> Tensor:
        """Features ``[N, F]`` with the column mask applied; sparse features stay sparse."""
        if isinstance(self.features, SparseMatrix):
            masked = self.features if self.feature_mask is None else self.features.scale_columns(self.feature_mask)
            return build_csr(masked.crow, masked.col, masked.values, masked.shape)
        return self.features if self.feature_mask is None else self.features * self.feature_mask

    def propagate_features(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """``adjacency @ (x @ weight.T)`` for ``weight`` ``[d, F]``, with products of matrices in ``dtype``.

        Masking columns of x is masking columns of the weight, so x is never copied, and what is masked is not
        multiplied. Sparse features stay sparse. Dense ones are averaged first where that costs less: F columns once per
        view, instead of ``d`` columns in each of the online pass, its gradient and the target pass.
        """
        if isinstance(self.features, SparseMatrix):
            transformed = self.features.times_weight(weight, self.feature_mask, dtype)
            return self.adjacency.product(transformed, dtype)
        if self.features.shape[1] < 3 * len(weight):
            kept = self._kept_columns
            if kept is not None and self.feature_mask is not None:
                weight = kept_columns(weight, self.feature_mask, kept, dtype)
            return product(self._averaged(dtype), weight.T, dtype)
        masked = weight if self.feature_mask is None else weight * self.feature_mask
        return self.adjacency.product(product(self._typed(dtype), masked.T, dtype), dtype)

    @cached_property
    def _kept_columns(self) -> Tensor | None:
        """Columns that are not masked, and a few that are, to a multiple of 32: products are prepared once per size."""
        if self.feature_mask is None:
            return None
        kept = int(self.feature_mask.count_nonzero())
        padded = min(-(-kept // 32) * 32, len(self.feature_mask))
        return (self.feature_mask == 0).to(torch.uint8).argsort(stable=True)[:padded].sort().values

    def _averaged(self, dtype: torch.dtype) -> Tensor:
        """``adjacency @ features``, of the columns :attr:`_kept_columns`, once per view and type."""
        if dtype not in self._averages:
            self._averages[dtype] = self.adjacency.times_columns(self._typed(dtype), self._kept_columns, dtype)
        return self._averages[dtype]

    def _typed(self, dtype: torch.dtype) -> Tensor:
        """Dense features as ``dtype``, converted once for all views of a graph."""
        assert isinstance(self.features, Tensor)
        if dtype == self.features.dtype:
            return self.features
        if dtype not in self._conversions:
            self._conversions[dtype] = self.features.to(dtype)
        return self._conversions[dtype]

    @cached_property
    def adjacency(self) -> SparseMatrix:
        """The normalised adjacency with self-loops (:func:`normalized_adjacency`)."""
        return normalized_adjacency(self.edge_index, self.num_nodes, self.dtype)


def is_csr(x: Tensor) -> bool:
    """Whether ``x`` is a torch CSR tensor."""
    return x.layout == torch.sparse_csr


def normalized_adjacency(edge_index: Tensor, num_nodes: int, dtype: torch.dtype = torch.float32) -> SparseMatrix:
    r"""The matrix :math:`\hat A` that PyG's ``GCNConv`` multiplies by, ``[N, N]``, row = receiver.

    One self-loop per node; weight :math:`(d_i d_j)^{-1/2}` with :math:`d_i = 1 + |\{j \ne i : j \to i\}|`, the
    in-degree also on the sender's side. Pairs sorted by receiver are taken as they stand, others are sorted first.
    """
    sender, receiver = edge_index
    if not bool((receiver[1:] >= receiver[:-1]).all()):
        order = torch.argsort(receiver, stable=True)
        sender, receiver = sender[order], receiver[order]
    return SparseMatrix.with_loops(sender, receiver, num_nodes, dtype)


def drop_edges(edge_index: Tensor, p: float) -> Tensor:
    """Keep every ordered pair independently with probability ``1 - p``, in their order (Eq. 8)."""
    if p == 0:
        return edge_index
    pairs = edge_index.shape[1]
    # The gap to the next kept pair is geometric: drawing gaps costs what is kept. Six deviations more than expected
    # are drawn; in the rare case that they do not reach the end, more follow.
    kept, last = [], -1
    while last < pairs:
        rest = pairs - last
        count = int(rest * (1 - p) + 6 * math.sqrt(rest * p * (1 - p))) + 1
        gaps = torch.rand(count, device=edge_index.device, dtype=torch.float64).log_().div_(math.log(p)).floor_()
        part, last = spaced_pairs(edge_index, gaps, last)
        kept.append(part)
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim=1)


def drop_columns(num_features: int, p: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A mask ``[F]`` that is 0 with probability ``p`` and else 1, one draw for all nodes (Eq. 9)."""
    return (torch.rand(num_features, device=device) >= p).to(dtype)
