"""What costs no training, to stand beside every figure: features, and features averaged over the graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from sgcl.data.preprocess import reduce_features
from sgcl.graph import View, is_csr

WIDEST = 1024
"""Features with more columns than this are reduced before a baseline is made of them."""


def average_hops(x: Tensor, edge_index: Tensor, hops: int) -> list[Tensor]:
    """Features averaged with the GCN's weights over 0, 1, ... ``hops`` steps, each ``[N, F]``."""
    adjacency = View(x, edge_index).adjacency
    blocks = [x]
    for _ in range(hops):
        blocks.append(adjacency @ blocks[-1])
    return blocks


def training_free(data: Data, columns: int = 256) -> dict[str, Tensor]:
    """Embeddings that need no training, by name.

    Features that are sparse or wider than :data:`WIDEST` are reduced to ``columns`` first. *side by side* joins the
    features with their averages over one and two hops, each reduced to ``columns`` and scaled to unit rows.
    """
    x = reduce_features(data.x, columns) if is_csr(data.x) or data.x.shape[1] > WIDEST else data.x
    own, one, two = average_hops(x, data.edge_index, 2)
    blocks = [reduce_features(block, columns) for block in (own, one, two)]
    joined = torch.cat([torch.nn.functional.normalize(block, dim=1) for block in blocks], dim=1)
    return {"raw features": own, "one hop": one, "two hops": two, "side by side": joined}
