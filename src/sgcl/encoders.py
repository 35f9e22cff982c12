"""Encoders: any ``nn.Module`` that maps ``(x, edge_index)`` to embeddings, and the paper's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import LayerNorm, inits

from sgcl.errors import InputError
from sgcl.graph import View, is_csr
from sgcl.kernels import norm_prelu, product

Norm = Literal["batch", "graph"]
Precision = Literal["fp32", "bf16"]


class ViewEncoder(nn.Module, ABC):
    """An encoder that reads views, and what they have computed for other passes, instead of ``(x, edge_index)``."""

    @abstractmethod
    def encode(self, view: View, made: torch.dtype | None = None) -> Tensor:
        """Embeddings of a view, as ``made``, by default the type of the features."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Embeddings ``[N, d]`` of a graph given as PyG gives it."""
        return self.encode(View(x, edge_index))


class GCNEncoder(ViewEncoder):
    """Graph convolutions, each followed by a norm and a PReLU, also after the last layer.

    Args:
        channels: sizes from the features to the embeddings, such as ``[745, 512, 256]``.
        norm: ``"batch"``, with momentum 0.99 in PyTorch's sense (running statistics are practically those of the last
            training pass), or ``"graph"``, mean and deviation over all nodes and channels at once.
        weight_standardization: before every pass, in place, scale each row of every weight but the first layer's to
            mean 0 and variance 1. The official code does this on arXiv, together with ``"graph"``.
        precision: ``"bf16"`` multiplies and keeps hidden layers in bfloat16, summed in float32; weights, statistics of
            norms, and the last layer's norm stay in float32.
    """

    def __init__(
        self,
        channels: Sequence[int],
        norm: Norm = "batch",
        weight_standardization: bool = False,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__()
        if len(channels) < 2 or min(channels) < 1:
            raise InputError(f"GCNEncoder: channels needs two or more positive sizes, got {list(channels)}")
        if norm not in ("batch", "graph"):
            raise InputError(f"GCNEncoder: norm must be 'batch' or 'graph', got {norm!r}")
        self.channels, self.norm, self.weight_standardization = list(channels), norm, weight_standardization
        self.precision = precision
        self.layers = nn.ModuleList(_Layer(*sizes, norm) for sizes in pairwise(channels))

    @property
    def in_channels(self) -> int:
        """Number of features."""
        return self.channels[0]

    @property
    def out_channels(self) -> int:
        """Number of columns of the embeddings."""
        return self.channels[-1]

    def encode(self, view: View, made: torch.dtype | None = None) -> Tensor:
        """Embeddings of a view, as ``made``; what the view has computed for an earlier pass is used again."""
        if self.weight_standardization:
            self._standardize_weights()
        first, *rest = self._stack()
        dtype = torch.bfloat16 if self.precision == "bf16" else view.dtype
        made = made or view.dtype
        h: Tensor = first(view.propagate_features(first.weight, dtype), dtype if rest else made)
        for layer in rest:
            last = layer is rest[-1]
            averaged = view.adjacency.product(product(h, layer.weight.T, dtype), view.dtype if last else dtype)
            h = layer(averaged, made if last else dtype)
        return h

    def _stack(self) -> Iterator[_Layer]:
        yield from self.layers.children()  # type: ignore[misc]  # all of them are layers

    @torch.no_grad()
    def _standardize_weights(self) -> None:
        # Paper: silent. Official code: a projection of the stored weight, evaluation passes included. Ours: the same.
        for layer in list(self._stack())[1:]:
            variance, mean = torch.var_mean(layer.weight, dim=1, keepdim=True)
            layer.weight.sub_(mean).div_((variance + 1e-5).sqrt())


class _Layer(nn.Module):
    """One graph convolution with its norm and activation, given the features times the weight."""

    def __init__(self, in_channels: int, out_channels: int, norm: Norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self.norm = nn.BatchNorm1d(out_channels, momentum=0.99) if norm == "batch" else LayerNorm(out_channels)
        self.activation = nn.PReLU()
        inits.glorot(self.weight)

    def forward(self, propagated: Tensor, dtype: torch.dtype) -> Tensor:
        if isinstance(self.norm, nn.BatchNorm1d):
            return norm_prelu(propagated, self.bias, self.norm, self.activation.weight, dtype)
        h: Tensor = self.activation(self.norm(propagated.to(self.bias.dtype) + self.bias)).to(dtype)
        return h


def encode(encoder: nn.Module, view: View, made: torch.dtype | None = None) -> Tensor:
    """Embeddings of ``view`` by our encoders, which share work between passes, or by any other module.

    Ours give them as ``made``, by default the type of the features: what goes into a product anyway need not be more.

    Raises:
        InputError: the module is not ours and the features are sparse.
    """
    if isinstance(encoder, ViewEncoder):
        return encoder.encode(view, made)
    if is_csr(view.x):
        raise InputError(
            f"{type(encoder).__name__}: features are sparse, which only GCNEncoder reads; "
            "reduce them first (sgcl.data.reduce_features), or pass x.to_dense() if it fits into memory"
        )
    h: Tensor = encoder(view.x, view.edge_index)
    return h
