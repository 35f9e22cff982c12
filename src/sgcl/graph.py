r"""Graphs as a training step sees them: views, the normalised adjacency, and dropping.

Shapes: ``N`` nodes, ``E`` ordered pairs, ``F`` features. A pair is a column ``(sender, receiver)`` of
``edge_index``, as in PyTorch Geometric; an undirected edge is two pairs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from sgcl.kernels import SparseMatrix, build_csr, row_pointers


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
        return View(**{**parts, **changes})

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

    def features_times(self, weight: Tensor) -> Tensor:
        """``x @ weight`` for ``weight`` ``[F, d]``, without forming ``x``: masking columns of x masks rows of it."""
        return self.features @ (weight if self.feature_mask is None else self.feature_mask.unsqueeze(1) * weight)

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
    keep = sender != receiver
    if not bool(keep.all()):
        sender, receiver = sender[keep], receiver[keep]
    if not bool((receiver[1:] >= receiver[:-1]).all()):
        order = torch.argsort(receiver, stable=True)
        sender, receiver = sender[order], receiver[order]
    counts = torch.bincount(receiver, minlength=num_nodes)
    nodes = torch.arange(num_nodes, device=edge_index.device)
    crow = row_pointers(counts + 1)
    # Every row starts with its loop, so the k-th pair is preceded by k pairs and receiver + 1 loops.
    col = torch.empty(len(sender) + num_nodes, dtype=torch.int64, device=edge_index.device)
    values = torch.empty(len(col), dtype=dtype, device=edge_index.device)
    place = torch.arange(len(sender), device=edge_index.device) + receiver + 1
    scale = (counts + 1).to(dtype).rsqrt()
    col[crow[:-1]], values[crow[:-1]] = nodes, scale * scale
    col[place], values[place] = sender, scale[sender] * scale[receiver]
    return SparseMatrix(crow, col, values, (num_nodes, num_nodes))


def drop_edges(edge_index: Tensor, p: float) -> Tensor:
    """Keep every ordered pair independently with probability ``1 - p``, in their order (Eq. 8)."""
    keep = torch.rand(edge_index.shape[1], device=edge_index.device) >= p
    return edge_index[:, keep]


def drop_columns(num_features: int, p: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A mask ``[F]`` that is 0 with probability ``p`` and else 1, one draw for all nodes (Eq. 9)."""
    return (torch.rand(num_features, device=device) >= p).to(dtype)
