import pytest
import torch
from torch_geometric.nn import GCNConv

import reference
from sgcl.graph import View, drop_edges, normalized_adjacency
from sgcl.kernels import SparseMatrix, build_csr

GRAPHS = {
    "symmetric": (4, [[0, 1, 1, 2], [1, 0, 2, 1]]),
    "asymmetric": (4, [[0, 1, 3], [1, 2, 1]]),
    "isolated nodes": (6, [[1, 4], [4, 1]]),
    "self-loops": (3, [[0, 1, 2, 0], [0, 0, 2, 1]]),
    "unsorted": (5, [[4, 0, 2, 1], [3, 4, 0, 1]]),
    "no edges": (3, [[], []]),
}
both_layouts = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
every_graph = pytest.mark.parametrize("nodes, pairs", GRAPHS.values(), ids=GRAPHS)


def dense(matrix: SparseMatrix) -> torch.Tensor:
    return matrix.csr.to_dense()


@every_graph
def test_normalized_adjacency_equals_the_dense_reference(nodes, pairs):
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(2, -1)
    found = normalized_adjacency(edge_index, nodes, torch.float64)
    torch.testing.assert_close(dense(found), reference.normalized_adjacency(edge_index, nodes))
    torch.testing.assert_close(dense(found.T), dense(found).T)


@every_graph
def test_normalized_adjacency_is_what_gcn_conv_multiplies_by(nodes, pairs):
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(2, -1)
    conv = GCNConv(nodes, nodes, bias=False)
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(nodes))
        torch.testing.assert_close(dense(normalized_adjacency(edge_index, nodes)), conv(torch.eye(nodes), edge_index))


@every_graph
def test_product_and_gradient(nodes, pairs):
    matrix = normalized_adjacency(torch.tensor(pairs, dtype=torch.long).reshape(2, -1), nodes, torch.float64)
    h = torch.randn(nodes, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(matrix @ h, dense(matrix) @ h)
    assert torch.autograd.gradcheck(lambda h: matrix @ h, h)


def test_product_with_empty_rows_and_columns():
    crow, col, values = torch.tensor([0, 0, 2, 2]), torch.tensor([1, 3]), torch.tensor([2.0, 5.0])
    matrix = SparseMatrix(crow, col, values, (3, 4))
    h = torch.randn(4, 2, requires_grad=True)
    (matrix @ h).sum().backward()
    assert torch.equal((matrix @ h)[0], torch.zeros(2))
    assert torch.equal(h.grad, torch.tensor([[0.0, 0], [2, 2], [0, 0], [5, 5]]))


@both_layouts
def test_a_masked_view_is_read_and_multiplied_alike(sparse):
    x = torch.tensor([[1.0, 0, 2], [0, 0, 3], [4, 0, 0]])
    stored = x
    if sparse:
        parts = torch.tensor([0, 2, 3, 4]), torch.tensor([0, 2, 2, 0]), torch.tensor([1.0, 2, 3, 4])
        stored = build_csr(*parts, (3, 3))
    mask = torch.tensor([1.0, 1, 0])
    view = View(stored, torch.empty(2, 0, dtype=torch.long), feature_mask=mask)
    weight = torch.randn(2, 3, requires_grad=True)
    expected = (x * mask) @ weight.T
    torch.testing.assert_close(view.x.to_dense(), x * mask)
    torch.testing.assert_close(view.propagate_features(weight, torch.float32), expected)
    wanted = torch.autograd.grad(expected.square().sum(), weight)[0]
    torch.testing.assert_close(
        torch.autograd.grad(view.propagate_features(weight, torch.float32).square().sum(), weight)[0], wanted
    )


def test_a_view_keeps_its_adjacency_and_a_thinner_one_makes_its_own(tiny_graph):
    view = View.of(tiny_graph)
    assert view.adjacency is view.adjacency
    assert View.of(view) is view
    thinned = view.replace(edge_index=view.edge_index[:, :2])
    assert thinned.x is not None and thinned.features is view.features
    assert thinned.adjacency.values.numel() == 6 + 2


def test_dropping_edges_keeps_order_and_share():
    edge_index = torch.arange(20_000).repeat(2, 1)
    torch.manual_seed(0)
    kept = drop_edges(edge_index, 0.9)[0]
    assert (kept.diff() > 0).all()
    assert kept.numel() == pytest.approx(2000, abs=4 * (20_000 * 0.09) ** 0.5)  # four deviations
