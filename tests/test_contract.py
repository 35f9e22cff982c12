"""What every method promises."""

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from sgcl import GCNEncoder, TrainConfig, View, train
from sgcl.methods import METHODS


@pytest.fixture(params=METHODS)
def method(request, tiny_graph):
    torch.manual_seed(0)
    method = METHODS[request.param](GCNEncoder([3, 8, 4]))
    method.train()
    method.prepare([method.augment(View.of(tiny_graph))])
    return method


def test_the_loss_is_finite_and_every_parameter_of_the_encoder_gets_a_gradient(method, tiny_graph):
    loss = method.loss(method.augment(View.of(tiny_graph).replace(x=tiny_graph.x + 1)))
    assert loss.shape == () and torch.isfinite(loss)
    loss.backward()
    assert all(parameter.grad is not None for parameter in method.encoder.parameters())


def test_the_input_graph_is_left_alone(method, tiny_graph):
    before = tiny_graph.clone()
    views = method.augment(View.of(tiny_graph))
    method.loss(views).backward()
    method.update(views)
    method.embed(tiny_graph)
    assert torch.equal(tiny_graph.x, before.x) and torch.equal(tiny_graph.edge_index, before.edge_index)


def test_embedding_ignores_augmentation_and_restores_the_mode(method, tiny_graph):
    first = method.embed(tiny_graph)
    assert torch.equal(first, method.embed(tiny_graph)) and not first.requires_grad
    assert method.training
    assert not method.eval().embed(tiny_graph).requires_grad and not method.training


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_run(name, block_graph):
    runs = []
    for _ in range(2):
        torch.manual_seed(4)
        method = METHODS[name](GCNEncoder([32, 8]))
        losses = [step.loss.item() for step in train(method, block_graph, TrainConfig(steps=5, warmup=1))]
        runs.append((losses, method.embed(block_graph)))
    assert runs[0][0] == runs[1][0] and torch.equal(runs[0][1], runs[1][1])


def test_the_state_survives_saving(method, tiny_graph):
    other = type(method)(GCNEncoder([3, 8, 4]))
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.embed(tiny_graph), method.embed(tiny_graph))
    assert torch.equal(other.monitored(), method.monitored())


@pytest.mark.parametrize("name", METHODS)
def test_any_pyg_model_is_an_encoder(name, block_graph):
    method = METHODS[name](GraphSAGE(32, 16, num_layers=2, out_channels=8))
    for step in train(method, block_graph, TrainConfig(steps=3, warmup=1)):
        assert torch.isfinite(step.loss)
    method.settle(block_graph)
    assert method.embed(block_graph).shape == (600, {"sgcl": 8, "duo": 8 + 32}[name])
