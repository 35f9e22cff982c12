import pytest
import torch
from torch_geometric.nn import GAT, GCN, GraphSAGE, LayerNorm

from reference import PlainEncoder
from sgcl import GCNEncoder, InputError, View
from sgcl.encoders import encode

COUNTS = {  # name: (channels, norm, parameters printed for SGCL)
    "wikics": ([300, 512, 256], "batch", 286_978),
    "computers": ([767, 256, 128], "batch", 230_274),
    "photo": ([745, 512, 256], "batch", 514_818),
    "cs": ([6805, 512, 256], "batch", 3_617_538),
    "physics": ([8415, 256, 128], "batch", 2_188_162),
    "arxiv": ([128, 256, 256, 256], "graph", 166_147),
    "mag": ([128, 128, 128], "batch", 33_538),
    "products": ([100, 128, 128], "batch", 29_954),
}


@pytest.mark.parametrize("channels, norm, count", COUNTS.values(), ids=COUNTS)
def test_parameter_counts_are_the_papers(channels, norm, count):
    encoder = GCNEncoder(channels, norm, weight_standardization=norm == "graph")
    assert sum(parameter.numel() for parameter in encoder.parameters()) == count


def test_parameters_come_per_layer_weight_bias_gain_shift_slope():
    shapes = [tuple(parameter.shape) for parameter in GCNEncoder([5, 4, 3]).parameters()]
    assert shapes == [(4, 5), (4,), (4,), (4,), (1,), (3, 4), (3,), (3,), (3,), (1,)]


def test_initial_values_and_norms():
    encoder = GCNEncoder([700, 300, 20])
    first = encoder.layers[0]
    assert first.weight.abs().max().item() <= (6 / 1000) ** 0.5  # Glorot
    assert not first.bias.any()
    assert first.activation.weight.item() == 0.25
    assert first.norm.momentum == 0.99
    assert isinstance(GCNEncoder([3, 2], "graph").layers[0].norm, LayerNorm)


@pytest.mark.parametrize("training", [True, False])
def test_it_is_gcn_conv_batch_norm_and_prelu(tiny_graph, training):
    ours, plain = GCNEncoder([3, 8, 4]), PlainEncoder([3, 8, 4])
    with torch.no_grad():
        for mine, theirs in zip(ours.parameters(), plain.in_order(), strict=True):
            mine.copy_(theirs)
    for encoder in (ours, plain):
        encoder.train()(tiny_graph.x, tiny_graph.edge_index)  # running statistics
        encoder.train(training)
    torch.testing.assert_close(
        ours(tiny_graph.x, tiny_graph.edge_index), plain(tiny_graph.x, tiny_graph.edge_index), atol=1e-6, rtol=1e-5
    )


def test_graph_norm_is_over_all_nodes_and_channels(tiny_graph):
    encoder = GCNEncoder([3, 16], "graph")
    with torch.no_grad():
        encoder.layers[0].activation.weight.fill_(1)  # identity
    h = encoder(tiny_graph.x, tiny_graph.edge_index)
    assert h.mean().item() == pytest.approx(0, abs=1e-6)
    assert h.std(unbiased=False).item() == pytest.approx(1, abs=1e-3)


def test_weight_standardization_projects_all_but_the_first_weight_also_in_evaluation(tiny_graph):
    encoder = GCNEncoder([3, 8, 8, 4], "graph", weight_standardization=True).eval()
    first = encoder.layers[0].weight.clone()
    encoder(tiny_graph.x, tiny_graph.edge_index)
    assert torch.equal(encoder.layers[0].weight, first)
    for layer in encoder.layers[1:]:
        torch.testing.assert_close(layer.weight.mean(dim=1), torch.zeros(len(layer.weight)), atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.weight.var(dim=1), torch.ones(len(layer.weight)), atol=1e-2, rtol=0)


def test_relabelling_nodes_permutes_embeddings(tiny_graph):
    encoder = GCNEncoder([3, 8, 4]).double()
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    x = tiny_graph.x.double()
    place = order.argsort()
    torch.testing.assert_close(
        encoder(x[order], place[tiny_graph.edge_index]), encoder(x, tiny_graph.edge_index)[order]
    )


def test_sparse_features_give_the_same_embeddings_and_gradients(tiny_graph):
    encoder = GCNEncoder([3, 8, 4])
    crow, col = torch.arange(0, 19, 3), torch.arange(3).repeat(6)
    from sgcl.kernels import build_csr

    sparse = build_csr(crow, col, tiny_graph.x.reshape(-1), (6, 3))
    results = []
    for x in (tiny_graph.x, sparse):
        h = encoder(x, tiny_graph.edge_index)
        results.append((h, torch.autograd.grad(h.square().sum(), list(encoder.parameters()))))
    torch.testing.assert_close(results[0], results[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", [GCN, GraphSAGE, GAT])
def test_pygs_own_models_are_encoders(tiny_graph, model):
    h = encode(model(3, 8, num_layers=2, out_channels=4), View.of(tiny_graph))
    assert h.shape == (6, 4)


def test_sparse_features_are_refused_by_other_encoders(tiny_graph):
    from sgcl.kernels import build_csr

    sparse = build_csr(torch.arange(0, 19, 3), torch.arange(3).repeat(6), tiny_graph.x.reshape(-1), (6, 3))
    with pytest.raises(InputError, match=r"GraphSAGE: features are sparse, which only GCNEncoder reads"):
        encode(GraphSAGE(3, 8, num_layers=2), View(sparse, tiny_graph.edge_index))


def test_nonsense_is_refused():
    with pytest.raises(InputError, match=r"channels needs two or more positive sizes, got \[5\]"):
        GCNEncoder([5])
    with pytest.raises(InputError, match=r"norm must be 'batch' or 'graph', got 'layer'"):
        GCNEncoder([5, 4], "layer")
