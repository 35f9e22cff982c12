import copy

import pytest
import torch
from torch import nn

from sgcl import SGCL, GCNEncoder, InputError, TrainConfig, train
from sgcl.stopping import SAMPLE, StopRule, Watch, nearest, stayed


def test_neighbours_by_hand():
    # Centred: two nodes to the left, two to the right.
    rows = torch.tensor([[-2.0, 0.1], [-2.0, -0.1], [2.0, 0.1], [2.0, -0.1]])
    assert nearest(rows + 5)[:, 0].tolist() == [1, 0, 3, 2]
    assert nearest(rows).shape == (4, 3)
    assert nearest(torch.randn(3 * SAMPLE + 5, 4)).shape[0] <= SAMPLE


def test_what_stayed_is_counted_in_any_order():
    before, after = torch.tensor([[1, 2, 3], [0, 2, 3]]), torch.tensor([[3, 1, 4], [2, 0, 3]])
    assert stayed(before, after) == pytest.approx(5 / 6)
    assert stayed(before, before) == 1


def test_it_stops_when_neighbourhoods_have_settled():
    torch.manual_seed(0)
    watch, encoder, z = Watch(StopRule(every=10, settled=0.9)), nn.Linear(2, 2), torch.randn(300, 8)
    assert watch.look(10, z, encoder) == (None, None)
    agreement, reason = watch.look(20, torch.randn(300, 8), encoder)
    assert agreement < 0.2 and reason is None
    other = watch.look(30, z, encoder)
    assert other[1] is None
    assert watch.look(40, 2 * z, encoder) == (1.0, "100% of nearest neighbours stayed since step 30")


def test_it_takes_the_weights_of_the_highest_rank_back_when_directions_are_lost():
    torch.manual_seed(0)
    watch, encoder = Watch(StopRule(lost=0.5)), nn.Linear(2, 2)
    watch.look(50, torch.randn(300, 8), encoder)
    best = copy.deepcopy(encoder.state_dict())
    with torch.no_grad():
        encoder.weight.add_(1)
    flat = torch.randn(300, 8) * torch.tensor([1.0, 1, 1e-4, 0, 0, 0, 0, 0])
    _, reason = watch.look(100, flat, encoder)
    assert reason == "the effective rank fell from 8 to 2; kept the weights of step 50, where it was highest"
    assert torch.equal(encoder.weight, best["weight"])


def learn(graph, steps=400, rule=None, path=None, until=None):
    torch.manual_seed(0)
    training = train(SGCL(GCNEncoder([32, 8])), graph, TrainConfig(steps=steps, warmup=5, stop=rule))
    if path is not None and path.exists():
        training.load(path)
    for step in training:
        if step.step == until:
            training.save(path)
            break
    return training


def test_training_ends_early_says_why_and_resumes_to_the_same_end(block_graph, tmp_path):
    rule = StopRule(every=10, settled=0.8)
    whole = learn(block_graph, rule=rule)
    assert whole.step < 400 and "of nearest neighbours stayed" in whole.stopped
    path = tmp_path / "c.safetensors"
    learn(block_graph, rule=rule, path=path, until=whole.step - 3)
    resumed = learn(block_graph, rule=rule, path=path)
    assert (resumed.step, resumed.stopped) == (whole.step, whole.stopped)
    for one, other in zip(resumed.method.parameters(), whole.method.parameters(), strict=True):
        assert torch.equal(one, other)
    learn(block_graph, rule=rule, path=path, until=whole.step)
    assert list(learn(block_graph, rule=rule, path=path)) == []  # stopped stays stopped
    assert learn(block_graph, steps=30).stopped is None


def test_a_checkpoint_without_a_watch_is_not_taken_for_one_with(block_graph, tmp_path):
    path = tmp_path / "c.safetensors"
    learn(block_graph, path=path, until=5)
    with pytest.raises(InputError, match="is not a checkpoint of this model"):
        learn(block_graph, rule=StopRule(), path=path)
