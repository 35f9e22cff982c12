import gc

import torch

from sgcl import SGCL, GCNEncoder, TrainConfig, train
from sgcl.buffers import Buffers, empty

LARGE = (1000, 300)


def test_memory_is_given_out_again_only_when_nobody_reads_it():
    buffers = Buffers()
    first = buffers.empty(LARGE, torch.float32)
    view, place = first[10:20], first.data_ptr()
    second = buffers.empty(LARGE, torch.float32)
    del first
    third = buffers.empty(LARGE, torch.float32)
    assert len({place, second.data_ptr(), third.data_ptr()}) == 3, "a view still reads the first block"
    del view
    assert buffers.empty(LARGE, torch.float32).data_ptr() == place
    assert all(one.data_ptr() % 64 == 0 for one in (second, third))


def test_what_autograd_saves_is_not_given_out():
    buffers = Buffers()
    a = buffers.empty(LARGE, torch.float32).fill_(1.0)
    place, weight = a.data_ptr(), torch.ones(300, 2, requires_grad=True)
    product = a @ weight
    del a
    assert buffers.empty(LARGE, torch.float32).fill_(7.0).data_ptr() != place
    product.sum().backward()
    assert (weight.grad == 1000).all()
    del product
    assert place in {buffers.empty(LARGE, torch.float32).data_ptr() for _ in range(3)}


def test_sizes_that_vary_a_little_share_a_block_and_others_do_not_pile_up():
    buffers = Buffers()
    for rows in (1000, 990, 1010, 1000):
        buffers.empty((rows, 300), torch.float32)
    assert buffers.bytes < 1.2 * 1000 * 300 * 4
    for rows in range(1000, 4000, 50):
        made = buffers.empty((rows, 300), torch.bfloat16)
        assert made.shape == (rows, 300) and made.dtype == torch.bfloat16
    assert buffers.bytes < 8 * 4000 * 300 * 2


def test_only_large_tensors_within_the_context_come_from_the_buffers():
    buffers = Buffers()
    with buffers():
        small, large = empty((10, 10), torch.float32), empty(LARGE, torch.float32)
    outside = empty(LARGE, torch.float32)
    assert small.shape == (10, 10) and outside.shape == large.shape
    assert 0 < buffers.bytes < 2 * large.numel() * 4


def test_training_uses_the_same_memory_in_every_step(block_graph, monkeypatch):
    monkeypatch.setattr("sgcl.buffers._LEAST", 0)
    made = []
    monkeypatch.setattr("sgcl.training.Buffers", lambda: made.append(Buffers()) or made[0])
    torch.manual_seed(0)
    method = SGCL(GCNEncoder([32, 64, 16]))
    sizes = [(len(made[0]._blocks), made[0].bytes) for _ in train(method, block_graph, TrainConfig(steps=12))]
    assert sizes[-1][1] <= 1.2 * sizes[2][1]
    gc.collect()
    in_use = sum(not block.is_free for block in made[0]._blocks)
    assert in_use == 1, "after a step only the targets are kept"


def test_reuse_changes_no_number(block_graph, monkeypatch):
    def run():
        torch.manual_seed(0)
        method = SGCL(GCNEncoder([32, 64, 16]))
        losses = [step.loss.item() for step in train(method, block_graph, TrainConfig(steps=8))]
        return losses, method.targets.clone()

    losses, targets = run()
    monkeypatch.setattr("sgcl.buffers._LEAST", 0)
    again, others = run()
    assert losses == again and torch.equal(targets, others)
