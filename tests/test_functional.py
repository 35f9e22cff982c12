import math

import pytest
import torch

import reference
from sgcl.functional import (
    alignment,
    cosine_distance,
    diffused,
    effective_rank,
    half_whitening,
    inferential_predictor,
    spread,
    warmup_cosine,
)
from sgcl.kernels import SparseMatrix


def test_predictor_by_hand():
    # Mean (1, 1); centred rows (-1, 0), (1, 0), (0, 3), (0, -3), each to unit length: P = diag(2, 2) / 3.
    target = torch.tensor([[0.0, 1], [2, 1], [1, 4], [1, -2]])
    torch.testing.assert_close(inferential_predictor(target), torch.eye(2) * 2 / 3)


def test_predictor_is_symmetric_positive_and_of_known_trace():
    target = torch.randn(50, 7, dtype=torch.float64)
    p = inferential_predictor(target)
    torch.testing.assert_close(p, p.T)
    assert torch.linalg.eigvalsh(p).min() > 0
    assert p.trace().item() == pytest.approx(50 / 49)
    torch.testing.assert_close(p, reference.predictor(target))


def test_predictor_ignores_shift_and_scale_of_the_targets():
    target = torch.randn(30, 5, dtype=torch.float64)
    torch.testing.assert_close(inferential_predictor(target), inferential_predictor(3 * target + torch.arange(5)))


def test_predictor_survives_a_row_at_the_mean():
    target = torch.tensor([[1.0, 1], [0, 0], [2, 2]])
    assert torch.isfinite(inferential_predictor(target)).all()


def test_predictor_carries_no_gradient():
    assert not inferential_predictor(torch.randn(4, 3, requires_grad=True)).requires_grad


def test_cosine_distance_says_same_opposite_and_orthogonal():
    h = torch.randn(9, 4)
    assert cosine_distance(h, h).item() == pytest.approx(0, abs=1e-6)
    assert cosine_distance(h, -h).item() == pytest.approx(2, abs=1e-6)
    assert cosine_distance(torch.tensor([[1.0, 0]]), torch.tensor([[0.0, 5]])).item() == pytest.approx(1)


def test_cosine_distance_is_blind_to_row_lengths():
    h, t = torch.randn(9, 4), torch.randn(9, 4)
    torch.testing.assert_close(cosine_distance(h, t), cosine_distance(h * torch.rand(9, 1).add(0.1), t * 7))


def test_schedule_at_points_known_by_hand():
    def lr(step):
        return warmup_cosine(step, peak=0.1, warmup=1000, total=10_000)

    assert lr(500) == pytest.approx(0.05)
    assert lr(1000) == pytest.approx(0.1)
    assert lr(5500) == pytest.approx(0.05)
    assert lr(10_000) == pytest.approx(0)
    assert warmup_cosine(1, peak=0.1, warmup=0, total=1) == pytest.approx(0)
    assert warmup_cosine(5, peak=0.1, warmup=5, total=5) == 0.1


def test_effective_rank_by_hand():
    assert effective_rank(torch.eye(8)) == pytest.approx(8)
    assert effective_rank(torch.ones(10, 4)) == pytest.approx(1, abs=1e-3)
    # Singular values 3 and 1: shares 3/4 and 1/4.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(math.exp(entropy), rel=1e-5)
    assert effective_rank(torch.zeros(3, 2)) == 0


def test_spread_by_hand():
    assert spread(torch.ones(5, 3)) == pytest.approx(0, abs=1e-6)
    assert spread(torch.tensor([[2.0, 0], [-3, 0]])) == pytest.approx(1)  # mean 0, every row at distance 1


def test_alignment_by_hand():
    z = torch.tensor([[1.0, 0], [2, 0], [0, 1]])
    assert alignment(z, torch.tensor([[0, 1], [1, 2]])) == pytest.approx(0.5)  # cosines 1 and 0
    assert alignment(z, torch.empty(2, 0, dtype=torch.long)) == 0


def test_diffusion_by_hand():
    # Two nodes that only hear each other: A = [[0, 1], [1, 0]]; with share 1/2 and two hops, 1/2 x + 1/4 Ax + 1/4 AAx.
    swap = SparseMatrix(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.ones(2), (2, 2))
    rows = torch.tensor([[4.0, 0], [0, 8]])
    torch.testing.assert_close(diffused(rows, swap, 0.5, hops=2), torch.tensor([[3.0, 2], [1, 6]]))
    torch.testing.assert_close(diffused(rows, swap, 1.0), rows)


def test_half_whitening_takes_square_roots_of_deviations_along_the_axes():
    torch.manual_seed(0)
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    rows = torch.randn(5000, 3) * torch.tensor([9.0, 4.0, 1.0]) @ turn
    rows -= rows.mean(dim=0)
    whitening = half_whitening(rows)
    torch.testing.assert_close(whitening, whitening.T)
    deviation = torch.linalg.svdvals(rows @ whitening)
    before = torch.linalg.svdvals(rows)
    torch.testing.assert_close(deviation / deviation[0], (before / before[0]).sqrt())
    flat = rows.clone()
    flat[:, 2] = 0
    assert torch.isfinite(half_whitening(flat)).all() and not half_whitening(torch.zeros(4, 3)).any()
