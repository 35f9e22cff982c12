import json

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

from sgcl import InputError, NodeEmbedder

FAST = {"dim": 8, "steps": 6, "hidden": (16,)}


def test_fit_transform_gives_a_row_per_node(block_graph):
    z = NodeEmbedder(**FAST).fit_transform(block_graph)
    assert z.shape == (600, 8) and z.dtype == np.float32 and np.isfinite(z).all()


def test_fitting_twice_equals_fitting_once_and_settings_are_kept(block_graph):
    embedder = NodeEmbedder(**FAST)
    settings = {name: value for name, value in vars(embedder).items()}
    first = embedder.fit_transform(block_graph)
    assert np.array_equal(embedder.fit_transform(block_graph), first)
    assert {name: getattr(embedder, name) for name in settings} == settings
    assert not np.array_equal(NodeEmbedder(**FAST, seed=1).fit_transform(block_graph), first)


def test_the_callers_random_state_is_untouched(block_graph):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    NodeEmbedder(**FAST).fit(block_graph)
    assert torch.equal(torch.get_rng_state(), before)


def test_saved_and_loaded_it_embeds_another_graph_alike(block_graph, tmp_path):
    embedder = NodeEmbedder(**FAST).fit(block_graph)
    embedder.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json", "metrics.jsonl", "model.safetensors",
    ]  # fmt: skip
    loaded = NodeEmbedder.load(tmp_path / "model")
    other = block_graph.x[:50], np.array([[0, 1, 2], [3, 4, 5]])
    assert np.array_equal(loaded.transform(other[1], other[0]), embedder.transform(other[1], other[0]))
    config = json.loads((tmp_path / "model/config.json").read_text())
    assert config["settings"]["seed"] == 0 and config["graph"]["nodes"] == 600 and config["made_by"]["torch"]
    assert loaded.history_ == embedder.history_ and repr(loaded).startswith("NodeEmbedder(method='duo', dim=8")


def test_an_own_encoder_is_copied_and_asked_for_when_loading(block_graph, tmp_path):
    encoder = GraphSAGE(32, 16, num_layers=2, out_channels=4)
    start = [parameter.clone() for parameter in encoder.parameters()]
    embedder = NodeEmbedder(steps=3, encoder=encoder).fit(block_graph)
    assert all(torch.equal(a, b) for a, b in zip(start, encoder.parameters(), strict=True))
    embedder.save(tmp_path)
    with pytest.raises(InputError, match="was trained with an own encoder; pass one of the same architecture"):
        NodeEmbedder.load(tmp_path)
    loaded = NodeEmbedder.load(tmp_path, encoder=GraphSAGE(32, 16, num_layers=2, out_channels=4))
    assert np.array_equal(loaded.transform(block_graph), embedder.transform(block_graph))


def test_a_networkx_graph_needs_no_more_than_x():
    graph = nx.karate_club_graph()
    for node in graph:
        graph.nodes[node]["x"] = np.eye(34)[node]
    assert NodeEmbedder(**FAST).fit_transform(graph).shape == (34, 8)


def test_an_interrupted_fit_resumes_to_the_same_bits(block_graph, tmp_path):
    whole = NodeEmbedder(**FAST).fit_transform(block_graph)
    first = NodeEmbedder(**FAST)
    first.fit(block_graph, folder=tmp_path, should_stop=lambda: True)
    assert not first.run_.finished
    with pytest.raises(InputError, match=r"holds an unfinished run; add --resume"):
        NodeEmbedder(**FAST).fit(block_graph, folder=tmp_path)
    with pytest.raises(InputError, match=r"differs from this one in settings.seed: 0 there, 5 here"):
        NodeEmbedder(**FAST, seed=5).fit(block_graph, folder=tmp_path, resume=True)
    with pytest.raises(InputError, match=r"differs from this one in graph.pairs: 6000 there, 2 here"):
        NodeEmbedder(**FAST).fit(np.array([[0], [1]]), block_graph.x, folder=tmp_path, resume=True)
    second = NodeEmbedder(**FAST).fit(block_graph, folder=tmp_path, resume=True)
    assert second.run_.finished and np.array_equal(second.transform(block_graph), whole)
    assert [record["step"] for record in second.history_] == [1, 6]

    second.save(tmp_path)
    second.run_.finish()
    taken = []
    third = NodeEmbedder(**FAST).fit(block_graph, folder=tmp_path, resume=True, on_step=taken.append)
    assert not taken and third.run_.finished and np.array_equal(third.transform(block_graph), whole)
    assert third.history_ == second.history_
    NodeEmbedder(**FAST, seed=1).fit(block_graph, folder=tmp_path, resume=True, on_step=taken.append)
    assert len(taken) == 6


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"method": "sgc"}, "method: 'sgc' is not known; choose one of duo, sgcl"),
        ({"dim": 0}, "dim: must be at least 1, got 0"),
        ({"steps": 0}, "steps: must be a whole number of at least 1, or 'auto', got 0"),
        ({"steps": "many"}, "steps: must be a whole number of at least 1, or 'auto', got 'many'"),
        ({"seed": -1}, "seed: must be a whole number from 0"),
        ({"edge_drop": 1.5}, r"DropEdges: p must lie in \[0, 1\), got 1.5"),
        ({"schedule": "long"}, "schedule: must be one of short, paper, got 'long'"),
        ({"schedule": "paper", "method": "sgcl"}, "the paper has no settings for 'own graph', only for wikics"),
        ({"schedule": "paper"}, "the paper has no settings for the method 'duo', only for 'sgcl'"),
        ({"lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"hidden": (0,)}, r"channels needs two or more positive sizes, got \[32, 0, 4\]"),
        ({"device": "tpu9"}, "device: 'tpu9' cannot be used here"),
    ],
)
def test_nonsense_is_refused(block_graph, settings, sentence):
    with pytest.raises(InputError, match=sentence):
        NodeEmbedder(**{**FAST, **settings}).fit(block_graph)


def test_misuse_is_explained(block_graph, tmp_path):
    with pytest.raises(InputError, match="nothing learned yet; call fit first"):
        NodeEmbedder().transform(block_graph)
    with pytest.raises(InputError, match="nothing to save; call fit first"):
        NodeEmbedder().save(tmp_path)
    fitted = NodeEmbedder(**FAST).fit(block_graph)
    with pytest.raises(InputError, match="the model knows 32 feature columns, the graph has 3"):
        fitted.transform(np.array([[0], [1]]), np.ones((4, 3)))
    with pytest.raises(InputError, match="is not a folder"):
        NodeEmbedder.load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"config.json: cannot be read as JSON"):
        NodeEmbedder.load(tmp_path)
