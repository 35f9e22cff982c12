"""The graphs that need no more than a file: the embedded digits, Amazon and Coauthor."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from sgcl.data.files import raw_folder
from sgcl.data.npz import read_npz
from sgcl.data.preprocess import binarise, csr_tensor, normalize_rows, symmetrise

DIGITS_NEIGHBOURS = 10
_DENSE_FROM = 0.1
"""Features with a larger share of non-zeros are stored dense: products with them are faster that way."""

_SHCHUR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"


def digits() -> Data:
    """Handwritten digits of scikit-learn, each linked with its ten nearest by cosine, in both directions."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    images, labels = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32)
    near = NearestNeighbors(n_neighbors=DIGITS_NEIGHBOURS + 1, metric="cosine").fit(x).kneighbors_graph()
    rows, columns = near.nonzero()
    keep = rows != columns
    edge_index = torch.from_numpy(np.stack([columns[keep], rows[keep]]).astype(np.int64))
    return Data(
        x=torch.from_numpy(x),
        edge_index=symmetrise(edge_index, len(x)),
        y=torch.from_numpy(labels.astype(np.int64)),
    )


def shchur(name: str, folder: str, file: str) -> Data:
    """One of the Amazon and Coauthor graphs of Shchur et al. (2018).

    As PyG's loaders give it, with row-normalised features: entries made binary, self-loops and duplicates removed, both
    directions present. Read from the raw file itself, because those loaders make sparse features dense.
    """
    arrays = read_npz(raw_folder(name, folder, [file], _SHCHUR + file) / file)
    adjacency = arrays.graph.tocoo()
    keep = adjacency.row != adjacency.col
    pairs = torch.from_numpy(np.stack([adjacency.row[keep], adjacency.col[keep]]).astype(np.int64))
    matrix, labels = arrays.features, torch.from_numpy(arrays.labels.astype(np.int64))
    edge_index = symmetrise(pairs, len(labels))
    rows, columns = matrix.shape
    dense = matrix.nnz > _DENSE_FROM * rows * columns
    raw = torch.from_numpy(matrix.toarray()) if dense else csr_tensor(matrix)
    del arrays, matrix, adjacency, pairs, keep  # large, and not needed while the rest is made
    return Data(x=normalize_rows(binarise(raw)), edge_index=edge_index, y=labels)
