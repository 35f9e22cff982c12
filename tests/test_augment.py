import pytest
import torch
from torch_geometric.data import Data

from sgcl import DropEdges, DropFeatures, InputError, View


@pytest.fixture(params=["data", "view"])
def graph(request, tiny_graph):
    return tiny_graph if request.param == "data" else View.of(tiny_graph)


def test_edges_are_a_random_subset_and_directions_fall_independently():
    pairs = torch.stack([torch.arange(2000), torch.arange(2000) + 2000])
    graph = Data(x=torch.ones(4000, 1), edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    torch.manual_seed(0)
    kept = set(map(tuple, DropEdges(0.5)(graph).edge_index.T.tolist()))
    assert kept < set(map(tuple, graph.edge_index.T.tolist()))
    one_way = sum((b, a) not in kept for a, b in kept)
    assert one_way / len(kept) == pytest.approx(0.5, abs=0.06)


def test_whole_columns_are_zeroed_and_nothing_is_rescaled():
    x = torch.rand(5, 400) + 1
    torch.manual_seed(0)
    dropped = DropFeatures(0.3)(Data(x=x, edge_index=torch.empty(2, 0, dtype=torch.long))).x
    gone = (dropped == 0).all(dim=0)
    assert torch.equal(dropped, x * ~gone)
    assert gone.double().mean().item() == pytest.approx(0.3, abs=0.1)


def test_the_input_is_left_alone(graph):
    x, edge_index = graph.x.clone(), graph.edge_index.clone()
    torch.manual_seed(0)
    DropFeatures(0.9)(DropEdges(0.9)(graph))
    assert torch.equal(graph.x, x) and torch.equal(graph.edge_index, edge_index)


def test_a_graph_and_its_view_are_augmented_alike(tiny_graph):
    found = []
    for graph in (tiny_graph, View.of(tiny_graph)):
        torch.manual_seed(3)
        found.append(DropFeatures(0.5)(DropEdges(0.5)(graph)))
    assert torch.equal(found[0].x, found[1].x) and torch.equal(found[0].edge_index, found[1].edge_index)


def test_zero_is_a_no_op(tiny_graph):
    view = View.of(tiny_graph)
    assert DropEdges(0)(view).edge_index is view.edge_index
    assert DropFeatures(0)(view).feature_mask is None


@pytest.mark.parametrize("transform", [DropEdges, DropFeatures])
@pytest.mark.parametrize("p", [1, -0.1, float("nan")])
def test_a_share_outside_0_to_1_is_refused(transform, p):
    with pytest.raises(InputError, match=rf"{transform.__name__}: p must lie in \[0, 1\), got {p!r}"):
        transform(p)
