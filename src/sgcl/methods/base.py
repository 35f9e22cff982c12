"""What every method is: three verbs and a hook around an encoder (Alg. 1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from sgcl.encoders import encode
from sgcl.graph import View


class Method(nn.Module, ABC):
    """Learns an encoder without labels; knows no optimizer, data set or label.

    Training calls, per step, ``augment``, ``loss``, then (after the optimizer) ``update``; and ``prepare`` once, before
    the first. What ``augment`` returns, the *views*, is the method's own affair and is handed on as it is.
    """

    reduces_features = False
    """Whether training sees features of another shape than the graph's: dense, as many columns as :meth:`plan` says."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    @abstractmethod
    def augment(self, batch: View) -> Any:
        """Views of a batch (a sampled subgraph, or the whole graph)."""

    @abstractmethod
    def loss(self, views: Any) -> Tensor:
        """A scalar to minimise, with a gradient for the encoder."""

    @abstractmethod
    def monitored(self) -> Tensor:
        """The representations ``[n, d]`` that label-free signals are read from while training."""

    def update(self, views: Any) -> None:
        """What follows the optimizer's step, without gradient; nothing unless a method needs it."""

    def prepare(self, batches: Iterable[Any]) -> None:
        """What precedes the first step, given views that together cover all nodes; nothing unless needed."""

    def settle(self, graph: View | Data) -> None:
        """What embeddings need to know of the whole plain graph once training pauses; nothing unless needed."""

    def represented(self, graph: View | Data) -> Tensor:
        """The part of the embeddings ``[N, d]`` that training changes, for signals of whether it still does."""
        return self.embed(graph)

    @staticmethod
    def plan(features: int, hidden: Sequence[int], dim: int) -> tuple[list[int], dict[str, Any]]:
        """For embeddings of ``dim`` columns: sizes of the encoder to train, and arguments of the constructor."""
        return [features, *hidden, dim], {}

    @torch.no_grad()
    def embed(self, graph: View | Data) -> Tensor:
        """Embeddings ``[N, d]`` of the plain graph, in evaluation mode; the mode before is restored."""
        mode = self.training
        self.eval()
        try:
            return encode(self.encoder, View.of(graph))
        finally:
            self.train(mode)
