"""What loaders do to raw features and edges before anybody trains on them.

Every function returns a new tensor and leaves its input alone. Features are ``[N, F]``, dense or torch CSR.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from sgcl.errors import InputError
from sgcl.kernels import build_csr

EXACT = 2048
"""Columns up to which singular vectors are computed exactly."""


def csr_tensor(matrix: scipy.sparse.csr_matrix | scipy.sparse.csr_array) -> Tensor:
    """A SciPy CSR matrix in torch: float32 values, sorted int64 indices, repeated entries added up."""
    matrix = matrix.copy()
    matrix.sum_duplicates()
    crow, col = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return build_csr(crow, col, torch.from_numpy(matrix.data.astype(np.float32)), matrix.shape)


def binarise(x: Tensor) -> Tensor:
    """Set every positive feature to 1, as PyG's reader of the Amazon and Coauthor files does."""
    if x.layout == torch.sparse_csr:
        return _with_values(x, binarise(x.values()))
    return x.masked_fill(x > 0, 1.0)


def normalize_rows(x: Tensor) -> Tensor:
    """Subtract the minimum of the whole matrix, then divide each row by its sum where that exceeds 1.

    This is ``NormalizeFeatures`` of PyG 2.0.4 and later; earlier versions did not subtract the minimum.
    The minimum of a CSR matrix is its zeros', hence negative entries are refused.
    """
    if x.layout != torch.sparse_csr:
        shifted = x - x.min()
        return shifted.div_(shifted.sum(dim=1, keepdim=True).clamp_(min=1.0))
    values, counts = x.values(), x.crow_indices().diff()
    if bool((values < 0).any()):
        raise InputError(f"normalize_rows: sparse features must not be negative, got {values.min():g}; make them dense")
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    sums = values.new_zeros(len(counts)).index_add_(0, rows, values)
    return _with_values(x, values / sums.clamp_(min=1.0)[rows])


def standardise_columns(x: Tensor) -> Tensor:
    """Shift and scale dense columns to mean 0 and population deviation 1; constant ones become 0."""
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    return (x - mean).div_(deviation.masked_fill_(deviation == 0, 1.0))


def reduce_features(x: Tensor, columns: int = 256, seed: int = 0) -> Tensor:
    """Features ``[N, F]``, dense or CSR, on their leading right singular vectors: ``[N, columns]``, dense.

    Truncated SVD without centring, so that sparse features stay sparse on the way.
    """
    rows, width = x.shape
    if width <= columns:
        return x.to_dense() if x.layout == torch.sparse_csr else x
    columns = min(columns, rows - 1)
    matrix = _scipy(x) if x.layout == torch.sparse_csr else x.numpy()
    from sklearn.decomposition import TruncatedSVD

    reduced = TruncatedSVD(columns, random_state=seed).fit_transform(matrix)
    return torch.from_numpy(np.ascontiguousarray(reduced, dtype=np.float32))


def unit_rows(x: Tensor) -> Tensor:
    """Rows scaled to length 1, dense or CSR; rows of zeros stay."""
    if x.layout != torch.sparse_csr:
        return torch.nn.functional.normalize(x, dim=1)
    values, counts = x.values(), x.crow_indices().diff()
    rows = torch.repeat_interleave(torch.arange(len(counts)), counts)
    lengths = values.new_zeros(len(counts)).index_add_(0, rows, values.square()).sqrt_()
    return _with_values(x, values / lengths.clamp_(min=1e-12)[rows])


def leading_directions(x: Tensor, columns: int, seed: int = 0) -> Tensor:
    """The right singular vectors ``[F, columns]`` of ``x`` (``[N, F]``, dense or CSR) of the largest singular values.

    Exact where F is at most :data:`EXACT`, randomised beyond. Where ``x`` has fewer directions, the rest is 0.
    """
    rows, width = x.shape
    columns = min(columns, width)
    matrix = _scipy(x) if x.layout == torch.sparse_csr else x.numpy()
    if width <= EXACT:
        gram = matrix.T @ matrix
        dense = gram.toarray() if scipy.sparse.issparse(gram) else gram
        axes: Tensor = torch.linalg.eigh(torch.from_numpy(np.asarray(dense, dtype=np.float64))).eigenvectors
        return axes.flip(1)[:, :columns].to(x.dtype).contiguous()
    from sklearn.decomposition import TruncatedSVD

    found = min(columns, rows)
    parts = TruncatedSVD(found, random_state=seed).fit(matrix).components_
    directions = torch.zeros(width, columns, dtype=x.dtype)
    directions[:, :found] = torch.from_numpy(parts.T)
    return directions


def symmetrise(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Pairs ``[2, E]`` in both directions, each once, sorted by receiver, then sender; self-links stay."""
    sender, receiver = edge_index
    both = [_keys(sender, receiver, num_nodes), _keys(receiver, sender, num_nodes)]
    return _pairs(sorted_unique(np.concatenate(both)), num_nodes)


def sort_by_receiver(edge_index: Tensor) -> Tensor:
    """The same pairs ``[2, E]``, repeated ones included, sorted by receiver, then sender."""
    num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 1
    sender, receiver = edge_index
    key = _keys(sender, receiver, num_nodes)
    key.sort()
    return _pairs(key, num_nodes)


def sorted_unique(key: np.ndarray) -> np.ndarray:
    """The distinct values of ``key``, ascending; sorts ``key`` in place."""
    key.sort()
    first = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return key[first]


def _keys(sender: Tensor, receiver: Tensor, num_nodes: int) -> np.ndarray:
    """One integer per pair, ordered by receiver, then sender; NumPy sorts those fastest, and in place."""
    return (receiver * num_nodes).add_(sender).numpy()


def _pairs(key: np.ndarray, num_nodes: int) -> Tensor:
    """The pairs ``[2, E]`` behind :func:`_keys`."""
    edge_index = np.empty((2, len(key)), dtype=np.int64)
    np.floor_divide(key, num_nodes, out=edge_index[1])
    np.multiply(edge_index[1], num_nodes, out=edge_index[0])
    np.subtract(key, edge_index[0], out=edge_index[0])
    return torch.from_numpy(edge_index)


def _scipy(x: Tensor) -> scipy.sparse.csr_matrix:
    """A CSR tensor in SciPy, sharing memory."""
    return scipy.sparse.csr_matrix((x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy()), x.shape)


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    """The CSR tensor ``x`` with other values."""
    return build_csr(x.crow_indices(), x.col_indices(), values, (x.shape[0], x.shape[1]))
