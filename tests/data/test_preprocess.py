import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import coalesce, sort_edge_index, to_undirected

from sgcl.data.preprocess import (
    binarise,
    csr_tensor,
    normalize_rows,
    sort_by_receiver,
    standardise_columns,
    symmetrise,
)
from sgcl.errors import InputError


def counts():
    """A sparse matrix of counts up to 9, nine in ten of them 0, with an empty row."""
    rng = np.random.default_rng(0)
    matrix = rng.integers(1, 10, (40, 30)) * (rng.random((40, 30)) < 0.1)
    matrix[3] = 0
    return scipy.sparse.csr_matrix(matrix)


def random_pairs(nodes=50, pairs=300, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(nodes, size=(2, pairs)))


def test_rows_are_shifted_by_the_smallest_entry_and_divided_by_sums_above_one():
    x = torch.tensor([[-1.0, 1.0], [0.0, 3.0], [-1.0, -0.5]])
    # Shifted by 1: (0, 2), (1, 4), (0, 0.5); sums 2, 5 and 0.5, the last too small to divide by.
    torch.testing.assert_close(normalize_rows(x), torch.tensor([[0.0, 1.0], [0.2, 0.8], [0.0, 0.5]]))


@pytest.mark.parametrize("shift", [0.0, -0.5, 2.0])
def test_dense_rows_are_those_of_pyg_bit_for_bit(shift):
    x = torch.rand(30, 20, generator=torch.Generator().manual_seed(0)) + shift
    before = x.clone()
    assert torch.equal(normalize_rows(x), NormalizeFeatures()(Data(x=x.clone())).x)
    assert torch.equal(x, before)


def test_sparse_rows_equal_dense_ones():
    x = csr_tensor(counts())
    before = x.to_dense()
    normalized = normalize_rows(x)
    assert normalized.layout == torch.sparse_csr
    torch.testing.assert_close(normalized.to_dense(), NormalizeFeatures()(Data(x=before.clone())).x)
    assert torch.equal(x.to_dense(), before)


def test_sparse_rows_must_not_be_negative():
    with pytest.raises(InputError, match=r"must not be negative, got -2; make them dense"):
        normalize_rows(csr_tensor(scipy.sparse.csr_array([[0.0, -2.0], [1.0, 0.0]])))


def test_positive_entries_become_one_and_others_stay():
    x = torch.tensor([[0.0, 3.0], [-1.0, 0.5]])
    assert torch.equal(binarise(x), torch.tensor([[0.0, 1.0], [-1.0, 1.0]]))
    assert torch.equal(binarise(csr_tensor(counts())).to_dense(), torch.from_numpy(counts().toarray() > 0).float())


def test_columns_get_mean_zero_and_population_deviation_one_and_constant_ones_become_zero():
    # Column 0 has mean 2 and deviations -1, 1, -1, 1; column 1 is constant although 0.1 is not exact.
    x = torch.tensor([[1.0, 0.1], [3.0, 0.1], [1.0, 0.1], [3.0, 0.1]])
    assert torch.equal(standardise_columns(x), torch.tensor([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]]))


def test_links_get_both_directions_once_in_order_of_receivers():
    # 2-0 is given both ways, 0-1 twice the same way, 2-2 is a self-link.
    edge_index = torch.tensor([[2, 0, 0, 0, 2], [0, 2, 1, 1, 2]])
    assert symmetrise(edge_index, 3).tolist() == [[1, 2, 0, 0, 2], [0, 0, 1, 2, 2]]


def test_symmetrise_agrees_with_pyg():
    pairs = random_pairs()
    before = pairs.clone()
    ours = symmetrise(pairs, 60)
    assert torch.equal(ours, coalesce(to_undirected(pairs), sort_by_row=False))
    assert ours.is_contiguous() and ours.dtype == torch.int64
    assert torch.equal(pairs, before)


def test_sorting_by_receiver_keeps_repeated_pairs():
    pairs = random_pairs(nodes=10)
    by_sender = sort_edge_index(pairs)
    ours = sort_by_receiver(pairs)
    assert torch.equal(ours, sort_edge_index(by_sender, sort_by_row=False)) and ours.is_contiguous()
    assert ours.shape == pairs.shape


def test_no_pairs_are_fine():
    none = torch.empty(2, 0, dtype=torch.int64)
    assert symmetrise(none, 3).shape == sort_by_receiver(none).shape == (2, 0)


def test_scipy_matrix_becomes_float32_csr_with_sorted_summed_entries():
    matrix = scipy.sparse.csr_array((np.array([1, 2, 3]), np.array([2, 0, 2]), np.array([0, 3, 3])), shape=(2, 3))
    x = csr_tensor(matrix)
    assert x.values().tolist() == [2.0, 4.0] and x.values().dtype == torch.float32
    assert x.col_indices().tolist() == [0, 2] and x.col_indices().dtype == torch.int64
    assert x.crow_indices().tolist() == [0, 2, 2] and x.shape == (2, 3)
    assert matrix.indices.tolist() == [2, 0, 2]
