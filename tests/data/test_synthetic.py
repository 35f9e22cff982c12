import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

from sgcl.data.synthetic import parse_synthetic, synthetic
from sgcl.errors import InputError


def same_class(data):
    sender, receiver = data.edge_index
    return (data.y[sender] == data.y[receiver]).float().mean().item()


def degrees(data):
    return torch.bincount(data.edge_index[1], minlength=data.num_nodes)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"nodes": 2_001, "edges": 12_346, "homophily": 0.37},
        {"nodes": 300, "homophily": 0.0},
        {"nodes": 300, "edges": 300, "homophily": 1.0, "power": 2.1},
        {"nodes": 300, "edges": 80_000, "homophily": 0.1},
        {"nodes": 100, "edges": 9_900, "classes": 1, "homophily": 1.0},
        {"nodes": 7, "edges": 0, "classes": 7},
    ],
    ids=str,
)
def test_exactly_the_asked_number_of_links_of_the_asked_kind(settings):
    data = synthetic(**settings)
    nodes = settings.get("nodes", 10_000)
    pairs = settings.get("edges", 10 * nodes)
    sender, receiver = data.edge_index
    key = receiver * nodes + sender
    assert data.edge_index.shape == (2, pairs) and data.edge_index.is_contiguous()
    assert bool((key[1:] > key[:-1]).all()), "sorted by receiver, then sender, and distinct"
    assert torch.equal((sender * nodes + receiver).sort().values, key), "undirected"
    assert not bool((sender == receiver).any())
    assert data.num_nodes == nodes and data.is_undirected()
    if pairs:
        assert same_class(data) * pairs / 2 == pytest.approx(round(settings.get("homophily", 0.8) * (pairs // 2)))


def test_types_and_shapes():
    data = synthetic(nodes=50, edges=100, features=6, classes=4)
    assert data.x.shape == (50, 6) and data.x.dtype == torch.float32 and data.x.is_contiguous()
    assert data.edge_index.dtype == data.y.dtype == torch.int64
    assert sorted(set(data.y.tolist())) == [0, 1, 2, 3]


def test_classes_are_shuffled_and_of_comparable_sizes():
    y = synthetic().y
    sizes = torch.bincount(y)
    assert len(sizes) == 10 and 400 < sizes.min() < sizes.max() < 1_600
    assert (y[1:] == y[:-1]).float().mean() < 0.2


def test_degrees_follow_a_power_law_that_power_steepens():
    heavy, light = degrees(synthetic(power=2.5)).float(), degrees(synthetic(power=6.0)).float()
    assert heavy.mean() == light.mean() == 10
    assert heavy.max() > 110 > 80 > light.max()
    # P(degree > k) falls as k^-(power - 1): from 20 to 60 by about 3^1.5 = 5.2, the cap left aside.
    assert 4 < (heavy > 20).sum() / (heavy > 60).sum() < 9


@pytest.mark.parametrize("density", [None, 0.05])
def test_same_seed_same_graph_and_global_state_untouched(density):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, again, other = (synthetic(nodes=500, density=density, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.edge_index, again.edge_index) and torch.equal(first.y, again.y)
    assert torch.equal(first.x.to_dense(), again.x.to_dense())
    assert not torch.equal(first.y, other.y) and not torch.equal(first.edge_index, other.edge_index)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize(("features", "density"), [(128, 0.01), (128, 0.5), (1_000, 0.03), (4, 0.25)])
def test_bags_of_words(features, density):
    x = synthetic(nodes=3_000, features=features, density=density).x
    assert x.layout == torch.sparse_csr and x.shape == (3_000, features) and x.dtype == torch.float32
    assert len(x.values()) / (3_000 * features) == pytest.approx(density, rel=0.03)
    dense = x.to_dense()
    torch.testing.assert_close(dense.sum(dim=1), torch.ones(3_000))
    assert torch.equal(dense, (dense > 0) / (dense > 0).sum(dim=1, keepdim=True)), "words of a row weigh the same"
    assert (dense > 0).sum().item() == len(x.values()), "no entry twice"


@pytest.mark.parametrize("density", [None, 0.02])
def test_neighbourhoods_tell_far_more_than_features_and_features_more_than_chance(density):
    data = synthetic(nodes=3_000, density=density)
    y, half = data.y.numpy(), 1_500
    own = data.x.to_dense()
    total = torch.zeros_like(own).index_add_(0, data.edge_index[1], own[data.edge_index[0]]) + own
    averaged = total / (degrees(data) + 1).unsqueeze(1)

    def accuracy(x):
        x = ((x - x.mean(0)) / x.std(0)).numpy()
        return RidgeClassifier(alpha=100).fit(x[:half], y[:half]).score(x[half:], y[half:])

    chance = np.bincount(y).max() / len(y)
    assert chance + 0.15 < accuracy(own) < 0.65
    assert accuracy(averaged) > accuracy(own) + 0.25


@pytest.mark.parametrize("spec", ["synthetic", "synthetic:"])
def test_bare_name_gives_the_defaults(spec):
    data = parse_synthetic(spec)
    assert data.x.shape == (10_000, 128) and data.edge_index.shape == (2, 100_000)
    assert torch.equal(data.edge_index, synthetic().edge_index)


def test_description_sets_every_argument():
    data = parse_synthetic(
        "synthetic:nodes=1000,edges=4000, features=64,density=0.1,classes=3,homophily=0.5,power=3,seed=3"
    )
    same = synthetic(1000, 4000, 64, 3, 0.1, 0.5, 3.0, 3)
    assert torch.equal(data.edge_index, same.edge_index) and torch.equal(data.y, same.y)
    assert torch.equal(data.x.to_dense(), same.x.to_dense())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            "nodez=5",
            "synthetic: 'nodez' is unknown; settings are nodes, edges, features, classes, density, homophily",
        ),
        ("nodes=5,nodes=6", "synthetic: 'nodes' is given twice"),
        ("nodes=many", "synthetic: nodes must be a whole number, got 'many'"),
        ("nodes", "synthetic: nodes must be a whole number, got ''"),
        ("seed=1.5", r"synthetic: seed must be a whole number, got '1\.5'"),
        ("density=x", "synthetic: density must be a number, got 'x'"),
        ("nodes=0", "synthetic: nodes must be at least 1, got 0"),
        (
            "nodes=20,edges=7",
            r"synthetic: edges must be even \(two per link\) and 0 to 380 for 20 nodes, got 7",
        ),
        ("nodes=20,edges=382", "synthetic: edges must be even .* and 0 to 380 for 20 nodes, got 382"),
        ("edges=-2", "synthetic: edges must be even .*, got -2"),
        ("features=0", "synthetic: features must be at least 1, got 0"),
        ("classes=0", "synthetic: classes must be 1 to 10000, the number of nodes, got 0"),
        ("nodes=20,classes=21", "synthetic: classes must be 1 to 20, the number of nodes, got 21"),
        (
            "density=0.001",
            r"synthetic: density must be 0\.0078125 \(a word per node\) to 0\.5, .*, got 0\.001",
        ),
        ("density=0.7", r"synthetic: density must be .* to 0\.5, or left out for dense features, got 0\.7"),
        ("density=nan", "synthetic: density must be .*, got nan"),
        ("homophily=1.1", r"synthetic: homophily must be 0 to 1, got 1\.1"),
        ("power=2", r"synthetic: power must be above 2 and finite, got 2\.0"),
        ("seed=-1", "synthetic: seed must be at least 0, got -1"),
        (
            "nodes=100,edges=8000",
            r"synthetic: homophily=0\.8 asks for 3200 links inside classes, which have room for \d+; change",
        ),
        (
            "classes=1",
            r"synthetic: homophily=0\.8 asks for 10000 links between classes, which have room for 0",
        ),
    ],
)
def test_what_cannot_be_is_said(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        parse_synthetic(f"synthetic:{settings}")


def test_other_names_are_refused():
    with pytest.raises(InputError, match="synthetic: a description starts with 'synthetic:', got 'photo'"):
        parse_synthetic("photo")
