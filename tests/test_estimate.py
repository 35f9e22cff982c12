import time

import pytest
import torch

from sgcl import estimate
from sgcl.data import open_source
from sgcl.estimate import CALIBRATION_SECONDS, Shape, peak_memory, step_seconds
from sgcl.pipeline import Settings
from sgcl.recipes import Recipe, recipe_for

SMALL = Settings(recipe=Recipe(hidden=(16,), dim=8))


def test_the_shape_of_a_graph_is_counted():
    assert Shape.of(open_source("synthetic:nodes=300,edges=2000,features=20")) == Shape(300, 2000, 20, None)
    sparse = open_source("synthetic:nodes=300,edges=2000,features=50,density=0.1")
    assert Shape.of(sparse) == Shape(300, 2000, 50, len(sparse.data.x.values()))


def test_memory_grows_linearly_and_halves_where_bfloat16_does():
    shape, double = Shape(10**6, 10**7, 128), Shape(2 * 10**6, 2 * 10**7, 128)
    settings = Settings(recipe=recipe_for("products"))
    one, two = peak_memory(shape, settings), peak_memory(double, settings)
    assert two / one == pytest.approx(2, rel=0.1)
    assert peak_memory(shape, Settings(recipe=recipe_for("products"), precision="bf16")) < one
    assert peak_memory(Shape(10**6, 10**7, 10_000, 10**7), settings) < 4 * 10**6 * 10_000 / 4  # never dense


def test_a_graph_that_cannot_be_tried_whole_is_extrapolated_in_time(monkeypatch):
    tried = []
    timed = estimate._timed

    def watched(nodes, *rest):
        tried.append(nodes)
        return timed(nodes, *rest)

    monkeypatch.setattr(estimate, "_timed", watched)
    start = time.perf_counter()
    step_seconds(Shape(10**8, 10**9, 64), SMALL)
    assert time.perf_counter() - start < 3 * CALIBRATION_SECONDS  # loops may have to be compiled
    assert max(tried) < 10**7


def test_the_random_state_is_left_alone():
    before = torch.get_rng_state()
    step_seconds(Shape(200, 1000, 8), SMALL)
    step_seconds(Shape(200, 1000, 30, 600), SMALL)
    assert torch.equal(torch.get_rng_state(), before)
