import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

import reference
from sgcl.data import reduce_features
from sgcl.data.preprocess import csr_tensor
from sgcl.evaluation import average_hops, baselines, training_free

NAMES = ["raw features", "one hop", "two hops", "side by side"]


def low_rank(nodes=40, columns=30, rank=4):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(nodes, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)


def ring(x):
    nodes = torch.arange(len(x))
    pairs = torch.stack([nodes, (nodes + 1) % len(x)])
    return Data(x=x, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))


def to_csr(x):
    return csr_tensor(scipy.sparse.csr_matrix(x.numpy()))


def test_averages_on_a_path_by_hand():
    # 0 - 1 - 2 with loops: degrees 2, 3, 2; weights 1/2 and 1/3 on the diagonal, 1/sqrt(6) on the links.
    x = torch.tensor([[6.0], [0.0], [0.0]])
    own, one, two = average_hops(x, torch.tensor([[1, 0, 2, 1], [0, 1, 1, 2]]), 2)
    assert own is x
    torch.testing.assert_close(one, torch.tensor([[3.0], [6**0.5], [0.0]]))
    # 3/2 + sqrt(6)/sqrt(6); 3/sqrt(6) + sqrt(6)/3 = 5/sqrt(6); sqrt(6)/sqrt(6).
    torch.testing.assert_close(two, torch.tensor([[2.5], [5 / 6**0.5], [1.0]]))


def test_averages_equal_dense_ones():
    edge_index = torch.tensor([[1, 0, 2, 1, 3], [0, 1, 1, 2, 0]])  # 3 sends to 0, not the other way round
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    a = reference.normalized_adjacency(edge_index, 5)
    for found, expected in zip(average_hops(x, edge_index, 3), (x, a @ x, a @ a @ x, a @ a @ a @ x), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_narrow_features_stay_as_they_are(sparse):
    x = low_rank(columns=6)
    made = training_free(ring(to_csr(x) if sparse else x), columns=8)
    assert list(made) == NAMES
    own, one, two = average_hops(x, ring(x).edge_index, 2)
    for name, block in zip(NAMES, (own, one, two), strict=False):
        torch.testing.assert_close(made[name], block)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(made["side by side"], torch.cat([unit(block) for block in (own, one, two)], dim=1))


def test_wider_features_are_reduced_only_where_they_are_joined():
    x = low_rank(columns=30)
    made = training_free(ring(x), columns=8)
    assert [tuple(made[name].shape) for name in NAMES] == [(40, 30), (40, 30), (40, 30), (40, 24)]
    assert torch.equal(made["raw features"], x)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_widest_and_all_wide_sparse_features_are_reduced_first(monkeypatch, sparse):
    if not sparse:
        monkeypatch.setattr(baselines, "WIDEST", 29)
    x = low_rank(columns=30)
    made = training_free(ring(to_csr(x) if sparse else x), columns=8)
    assert [tuple(made[name].shape) for name in NAMES] == [(40, 8), (40, 8), (40, 8), (40, 24)]
    torch.testing.assert_close(made["raw features"] @ made["raw features"].T, x @ x.T, atol=1e-3, rtol=1e-4)
    lengths = made["side by side"].view(40, 3, 8).norm(dim=2)
    torch.testing.assert_close(lengths, torch.ones(40, 3))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_reducing_keeps_the_inner_products_of_a_low_rank_matrix(sparse):
    x = low_rank(rank=4)
    before = x.clone()
    reduced = reduce_features(to_csr(x) if sparse else x, columns=5)
    assert reduced.shape == (40, 5) and reduced.dtype == torch.float32
    torch.testing.assert_close(reduced @ reduced.T, x @ x.T, atol=1e-3, rtol=1e-4)
    assert torch.equal(x, before)
    assert np.linalg.matrix_rank(reduced.numpy(), tol=1e-3) == 4
