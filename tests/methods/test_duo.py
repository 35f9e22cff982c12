import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

import reference
from sgcl import Duo, GCNEncoder, InputError, TrainConfig, View, train
from sgcl.data.preprocess import csr_tensor
from sgcl.functional import alignment
from sgcl.methods.duo import TwoHalves


def trained(graph, steps=5, **changes):
    torch.manual_seed(0)
    method = Duo(GCNEncoder([min(graph.x.shape[1], 256), 16, 8]), **changes)
    for _ in train(method, graph, TrainConfig(steps=steps, warmup=1)):
        pass
    method.settle(graph)
    return method


def by_hand(method, graph):
    """The embeddings of a dense graph, step by step in float64."""
    x = (graph.x.to_dense() if graph.x.layout == torch.sparse_csr else graph.x).double()
    own = x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
    own = own @ method.halves.directions.double()
    own = own - own.mean(dim=0)
    own = own / own.norm(dim=1, keepdim=True)
    with torch.no_grad():
        learned = method.halves.core.eval()(own.float(), graph.edge_index).double()
    learned = learned - learned.mean(dim=0)
    values, axes = torch.linalg.eigh(learned.T @ learned)
    learned = learned @ axes @ torch.diag(values.clamp(min=1e-30) ** -0.25 * (values > 1e-12 * values[-1])) @ axes.T
    learned = learned / learned.norm(dim=1, keepdim=True)
    share = min(1.0, 1 - (own[graph.edge_index[0]] * own[graph.edge_index[1]]).sum(dim=1).mean().item())
    a = reference.normalized_adjacency(graph.edge_index, len(x))
    halves = []
    kept = min(share, 0.5)
    for half, s in ((learned, kept), (own[:, : method.halves.own_columns], share)):
        total, power = torch.zeros_like(half), half
        for hop in range(11):
            total += power * (s * (1 - s) ** hop if hop < 10 else (1 - s) ** 10)
            power = a @ power
        halves.append(total / total.norm(dim=1, keepdim=True))
    return torch.cat([halves[0], halves[1] * kept / (1 - kept)], dim=1)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("own_columns", [32, 5])
def test_embeddings_are_those_made_by_hand(block_graph, sparse, own_columns):
    graph = block_graph.clone()
    if sparse:
        import scipy.sparse

        graph.x = csr_tensor(scipy.sparse.csr_matrix((graph.x * (graph.x > 0.5)).numpy()))
    method = trained(graph, own_columns=own_columns)
    found = method.embed(graph)
    assert found.shape == (600, 8 + own_columns) and found.dtype == torch.float32
    torch.testing.assert_close(found.double(), by_hand(method, graph), atol=2e-4, rtol=0)


def test_neighbours_that_look_alike_leave_less_to_the_node_itself(block_graph):
    method = trained(block_graph)
    own = method.halves.read(View.of(block_graph)).x
    share = float(method.halves.share)
    assert share == pytest.approx(min(1.0, 1 - alignment(own, block_graph.edge_index)), abs=1e-5) and share > 0.5
    assert torch.allclose(method.embed(block_graph)[:, 8:].norm(dim=1), torch.ones(600))
    alike = block_graph.clone()
    alike.x = 5 * F.one_hot(alike.y).float().repeat(1, 4) + 0.1 * alike.x[:, :12]
    seen = trained(alike)
    share = float(seen.halves.share)
    own = seen.halves.read(View.of(alike)).x
    assert share == pytest.approx(1 - alignment(own, alike.edge_index), abs=1e-5) and share < 0.5
    learned, own = seen.embed(alike).split([8, 12], dim=1)
    torch.testing.assert_close(learned.norm(dim=1), torch.ones(600))
    torch.testing.assert_close(own.norm(dim=1), torch.full((600,), share / (1 - share)))


def test_where_linked_nodes_differ_a_node_keeps_all_of_itself():
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    pairs = torch.stack([torch.arange(0, 40, 2), torch.arange(1, 40, 2)])
    rows[1::2] = -rows[::2]  # linked nodes are opposites
    method = trained(Data(rows, torch.cat([pairs, pairs.flip(0)], dim=1)))
    assert method.halves.share == 1
    own = method.halves.read(View(rows, pairs)).x
    torch.testing.assert_close(method.embed(View(rows, torch.cat([pairs, pairs.flip(0)], dim=1)))[:, 8:], own)


def test_another_graph_is_read_with_what_the_first_one_set(block_graph):
    method = trained(block_graph)
    before = {name: value.clone() for name, value in method.halves.state_dict().items()}
    whole = method.embed(block_graph)
    part = View(block_graph.x[:50], torch.tensor([[0, 1, 2], [3, 4, 5]]))
    assert method.embed(part).shape == (50, 40)
    assert all(torch.equal(value, before[name]) for name, value in method.halves.state_dict().items())
    assert torch.equal(method.embed(block_graph), whole)


def test_wide_sparse_features_are_reduced_once(block_graph):
    import scipy.sparse

    words = scipy.sparse.random(600, 3000, 0.01, "csr", dtype="float32", random_state=0)
    graph = block_graph.clone()
    graph.x = csr_tensor(words)
    method = trained(graph)
    assert method.halves.directions.shape == (3000, 256)
    assert method.embed(graph).shape == (600, 8 + 256)


def test_the_plan_gives_half_of_the_columns_to_the_features_as_far_as_they_reach():
    assert Duo.plan(6805, (512,), 512) == ([256, 512, 256], {"own_columns": 256})
    assert Duo.plan(64, (512,), 512) == ([64, 512, 448], {"own_columns": 64})
    assert Duo.plan(64, (512,), 33) == ([64, 512, 17], {"own_columns": 16})


def test_features_that_tell_no_nodes_apart_are_refused(tiny_graph):
    graph = tiny_graph.clone()
    graph.x = torch.rand(6, 1).expand(6, 3).contiguous()
    with pytest.raises(
        InputError, match="duo: the features, each row scaled to length 1, are the same for every node; give more"
    ):
        trained(graph)


def test_two_halves_given_as_encoder_stay_what_they_are():
    halves = TwoHalves(GCNEncoder([3, 4]), 2)
    assert Duo(halves).encoder is halves


def test_what_was_never_trained_does_not_embed(block_graph):
    with pytest.raises(InputError, match="duo: nothing learned yet; train first, or load a model"):
        Duo(GCNEncoder([32, 8])).embed(block_graph)
