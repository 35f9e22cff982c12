"""A few seconds of training are worth something."""

import pytest
import torch

from sgcl import SGCL, GCNEncoder, TrainConfig, linear_probe, train
from sgcl.evaluation import random_splits
from sgcl.functional import effective_rank


@pytest.mark.parametrize("seed", [0, 1])
def test_training_beats_the_features_and_the_untrained_encoder_and_does_not_collapse(block_graph, seed):
    torch.manual_seed(seed)
    method = SGCL(GCNEncoder([32, 32, 16]), edge_drop=0.3, feature_drop=0.2)
    splits = random_splits(block_graph.y, range(1, 6))
    untrained = linear_probe(method.embed(block_graph), block_graph.y, splits).mean
    for step in train(method, block_graph, TrainConfig(steps=100, lr=5e-3, warmup=10)):
        last = step
    z = method.embed(block_graph)
    trained = linear_probe(z, block_graph.y, splits).mean
    assert trained > linear_probe(block_graph.x, block_graph.y, splits).mean + 10
    assert trained > untrained + 2
    assert effective_rank(z) > 4 and last.spread > 0.3
