import subprocess
import sys

import pytest
import torch

from sgcl import SGCL, GCNEncoder, InputError, TrainConfig, TrainingStopped, View, train


def training(graph, steps=12, **settings):
    torch.manual_seed(1)
    method = SGCL(GCNEncoder([graph.x.shape[1], 16, 8]), 0.4, 0.2)
    return train(method, graph, TrainConfig(steps=steps, warmup=2, log_every=5, **settings))


def test_one_record_per_step_with_signals_on_logged_ones(block_graph):
    steps = list(training(block_graph))
    assert [step.step for step in steps] == list(range(1, 13))
    assert [step.step for step in steps if step.effective_rank is not None] == [1, 5, 10, 12]
    assert steps[0].lr == pytest.approx(2.5e-4) and steps[1].lr == 5e-4 and steps[-1].lr == pytest.approx(0)
    assert set(steps[0].record()) == {"step", "loss", "lr", "effective_rank", "spread", "seconds"}
    assert 1 <= steps[-1].effective_rank <= 8 and 0 < steps[-1].spread <= 1


def test_the_callers_time_between_steps_is_not_training_time(block_graph, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("sgcl.training.time.perf_counter", lambda: float(next(clock)))
    seconds = []
    for step in training(block_graph, steps=3):
        seconds.append(step.seconds)
        for _ in range(50):
            next(clock)
    assert seconds == [1, 2, 3]


@pytest.mark.parametrize("stop", [1, 4, 5, 11])
def test_saved_between_any_two_steps_it_ends_with_the_same_bits(block_graph, tmp_path, stop):
    whole = training(block_graph)
    losses = [step.loss.item() for step in whole]

    first = training(block_graph)
    for step in first:
        if step.step == stop:
            break
    first.save(tmp_path / "c.safetensors", {"note": 1})
    second = training(block_graph)
    torch.manual_seed(99)
    assert second.load(tmp_path / "c.safetensors")["note"] == 1
    rest = [step.loss.item() for step in second]

    assert rest == losses[stop:]
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, second.method.state_dict()[name]), name
    assert torch.equal(whole.method.embed(block_graph), second.method.embed(block_graph))


def test_a_checkpoint_of_another_model_is_refused(block_graph, tmp_path):
    first = training(block_graph, steps=1)
    list(first)
    first.save(tmp_path / "c.safetensors")
    other = train(SGCL(GCNEncoder([32, 8])), block_graph, TrainConfig())
    with pytest.raises(InputError, match="is not a checkpoint of this model"):
        other.load(tmp_path / "c.safetensors")
    (tmp_path / "c.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        other.load(tmp_path / "c.safetensors")


def test_batches_take_turns(block_graph):
    seen = []

    class Recording(SGCL):
        def augment(self, batch):
            seen.append(int(batch.n_id[0]))
            return super().augment(batch)

    empty = torch.empty(2, 0, dtype=torch.long)
    halves = [View(block_graph.x[i : i + 300], empty, n_id=torch.arange(i, i + 300)) for i in (0, 300)]
    list(train(Recording(GCNEncoder([32, 8])), halves, TrainConfig(steps=3, warmup=1)))
    assert seen == [0, 300, 0, 300, 0]  # both in prepare, then one per step
    with pytest.raises(InputError, match="no batches"):
        train(SGCL(GCNEncoder([32, 8])), [], TrainConfig())


def test_a_loss_that_is_not_finite_stops_with_advice(block_graph):
    with pytest.raises(TrainingStopped, match=r"step \d+: numbers are no longer finite .*try a lower lr \(now 1e\+30"):
        list(training(block_graph, lr=1e30))


def test_a_collapse_stops_with_advice(tiny_graph):
    graph = tiny_graph.clone()
    graph.x = torch.ones(6, 3)
    graph.edge_index = torch.empty(2, 0, dtype=torch.long)
    method = SGCL(GCNEncoder([3, 4], norm="graph"), 0, 0)
    with pytest.raises(TrainingStopped, match="embeddings of all nodes have become the same"):
        list(train(method, graph, TrainConfig(steps=3, warmup=1, log_every=1)))


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"lr": -1.0}, r"lr must be at least 0, got -1.0"),
        ({"lr": float("nan")}, r"lr must be at least 0, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"log_every": 0}, "log_every must be at least 1, got 0"),
    ],
)
def test_nonsense_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        TrainConfig(**settings)


def test_importing_seeds_nothing():
    code = (
        "import random, numpy, torch, sklearn.model_selection\n"  # which draws from random when imported
        "random.seed(5), numpy.random.seed(6), torch.manual_seed(7)\n"
        "before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()\n"
        "import sgcl.cli, sgcl.embedder, sgcl.bench, sgcl.report\n"
        "after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()\n"
        "assert before == after\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
