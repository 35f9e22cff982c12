"""Every compiled loop against the plain float64 formula: forward and gradient, in float32 and bfloat16."""

import pytest
import torch
from torch import nn

import reference
from sgcl import kernels
from sgcl.graph import View, drop_edges, normalized_adjacency
from sgcl.kernels import SparseMatrix, centred_unit_rows, cosine_distance, kept_columns, norm_prelu, product

TYPES = {torch.float32: {"atol": 2e-5, "rtol": 2e-5}, torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2}}
every_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request, monkeypatch):
    """Small matrices in as many parts as threads."""
    monkeypatch.setattr(kernels.threads, "SMALL", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


def graphs():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(40, (2, 150), generator=generator)
    yield "random, with loops and doubles", pairs[:, pairs[1].argsort(stable=True)], 40
    yield "isolated nodes at both ends", torch.tensor([[3, 5, 4], [4, 4, 5]]), 9
    yield "asymmetric", torch.tensor([[0, 1, 2], [1, 2, 3]]), 4
    yield "no edges", torch.empty(2, 0, dtype=torch.long), 7
    yield "all into one", torch.stack([torch.arange(1, 20), torch.zeros(19, dtype=torch.long)]), 20


GRAPHS = {name: (edge_index, nodes) for name, edge_index, nodes in graphs()}


@pytest.mark.parametrize("edge_index, nodes", GRAPHS.values(), ids=GRAPHS)
def test_adjacency_and_its_transpose(edge_index, nodes):
    wanted = reference.normalized_adjacency(edge_index, nodes)
    found = normalized_adjacency(edge_index, nodes)
    assert found.values.dtype == torch.float32
    torch.testing.assert_close(found.csr.to_dense().double(), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.T.csr.to_dense().double(), wanted.T, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("edge_index, nodes", GRAPHS.values(), ids=GRAPHS)
@every_type
def test_sparse_product_and_gradient(edge_index, nodes, dtype, threads):
    torch.manual_seed(0)
    matrix, wanted = normalized_adjacency(edge_index, nodes), reference.normalized_adjacency(edge_index, nodes)
    h = torch.randn(nodes, 33).to(dtype).requires_grad_()
    weight = torch.randn(nodes, 33)
    product = matrix.product(h, torch.float32)
    torch.testing.assert_close(product.double(), wanted @ h.double(), **TYPES[torch.float32])
    (product * weight).sum().backward()
    assert h.grad.dtype == dtype
    torch.testing.assert_close(h.grad.double(), wanted.T @ weight.double(), **TYPES[dtype])


@every_type
def test_rectangular_matrix_with_empty_rows_and_columns(dtype, threads):
    dense = torch.zeros(6, 5)
    dense[1, 3], dense[1, 0], dense[4, 3] = 2.0, -1.0, 0.5
    matrix = SparseMatrix.from_torch(dense.to_sparse_csr())
    h = torch.randn(5, 4).requires_grad_()
    product = matrix.product(h, dtype)
    assert product.dtype == dtype
    torch.testing.assert_close(product.double(), dense.double() @ h.double(), **TYPES[dtype])
    product.float().sum().backward()
    torch.testing.assert_close(h.grad, dense.T @ torch.ones(6, 4), **TYPES[dtype])


def test_rounding_to_bfloat16_is_torchs():
    values = torch.randn(500, 7) * torch.logspace(-30, 30, 500).unsqueeze(1)
    eye = SparseMatrix.from_torch(torch.eye(500).to_sparse_csr())
    assert torch.equal(eye.times(values, torch.bfloat16), values.bfloat16())
    assert torch.equal(eye.times(values.bfloat16(), torch.float32), values.bfloat16().float())


@pytest.mark.parametrize("rows", [3, 1024, 5000, 6200])
@pytest.mark.parametrize("by", ["torch's product", "oneDNN's"])
@every_type
def test_dense_product_and_gradients(rows, by, dtype, monkeypatch):
    if by == "oneDNN's" and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch comes without oneDNN")
    monkeypatch.setattr(kernels.dense, "_has_onednn", lambda: by == "oneDNN's")
    monkeypatch.setattr(kernels.dense, "_LARGE", 0)
    torch.manual_seed(0)
    a, weight = (torch.randn(rows, 7, requires_grad=True), torch.randn(5, 7, requires_grad=True))
    rounded = [part.detach().to(dtype).double().requires_grad_() for part in (a, weight)]
    wanted, found = rounded[0] @ rounded[1].T, product(a, weight.T, dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, **TYPES[dtype])
    upper = torch.randn(rows, 5).to(dtype)
    gradients = torch.autograd.grad((found * upper).sum(), (a, weight))
    exactly = torch.autograd.grad((wanted * upper.double()).sum(), rounded)
    torch.testing.assert_close(gradients[0].double(), exactly[0], **TYPES[dtype])
    off = (gradients[1].double() - exactly[1]).norm() / exactly[1].norm()
    assert gradients[1].is_contiguous() and off < (5e-6 if dtype == torch.float32 else 1e-2)
    gram = kernels.rows_product(a.detach(), a.detach())
    torch.testing.assert_close(gram.double(), a.detach().double().T @ a.detach().double(), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@every_type
def test_norm_and_activation(dtype, training, threads):
    torch.manual_seed(1)
    z, bias = (3 * torch.randn(50, 19) + 5).requires_grad_(), torch.randn(19, requires_grad=True)
    norm, slope = nn.BatchNorm1d(19, momentum=0.99), torch.tensor([0.25], requires_grad=True)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2)
        norm.weight[0] = 0
        norm.bias.normal_()
    norm.train(training)
    plain = nn.BatchNorm1d(19, momentum=0.99).double().train(training)
    plain.load_state_dict(norm.state_dict())
    parts = [z, bias, norm.weight, norm.bias, slope]
    exact = [part.detach().double().requires_grad_() for part in (z, bias)]
    exact_slope = slope.detach().double().requires_grad_()
    wanted = torch.nn.functional.prelu(plain(exact[0] + exact[1]), exact_slope)
    found = norm_prelu(z, bias, norm, slope, dtype)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, **TYPES[dtype])
    torch.testing.assert_close(norm.running_mean.double(), plain.running_mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), plain.running_var, atol=1e-5, rtol=1e-6)
    assert norm.num_batches_tracked == plain.num_batches_tracked

    upper = torch.randn(50, 19)
    gradients = torch.autograd.grad((found * upper).sum(), parts)
    exact_parts = [*exact, plain.weight, plain.bias, exact_slope]
    exact_gradients = torch.autograd.grad((wanted * upper.double()).sum(), exact_parts)
    tolerance = TYPES[dtype] if dtype == torch.float32 else {"atol": 0.2, "rtol": 5e-2}  # sums of fifty rounded terms
    for mine, exactly in zip(gradients, exact_gradients, strict=True):
        torch.testing.assert_close(mine.double(), exactly, **tolerance)


def test_a_column_far_from_zero_keeps_its_variance(threads):
    z = torch.randn(1000, 2) * 0.01 + 100
    norm = nn.BatchNorm1d(2)
    found = norm_prelu(z, torch.zeros(2), norm, torch.ones(1), torch.float32)
    wanted = nn.BatchNorm1d(2).double()(z.double())
    torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=0)


@every_type
def test_centred_unit_rows(dtype, threads):
    z = torch.randn(30, 8) + 4
    z[7] = z[[i for i in range(30) if i != 7]].mean(dim=0)  # at the mean: a row of zeros, up to rounding
    centred = z.double() - z.double().mean(dim=0)
    wanted = centred / centred.norm(dim=1, keepdim=True)
    found = centred_unit_rows(z, dtype).double()
    others = torch.arange(30) != 7
    torch.testing.assert_close(found[others], wanted[others], **TYPES[dtype])
    assert torch.isfinite(found).all()
    assert not centred_unit_rows(torch.ones(3, 2), dtype).any()


@every_type
def test_kept_columns_and_gradient(dtype, threads):
    torch.manual_seed(4)
    weight, mask = torch.randn(5, 9, requires_grad=True), torch.tensor([1.0, 0, 2, 1, 0, 0, 1, 1, 0])
    kept = torch.tensor([0, 2, 3, 5, 6, 7])  # the sixth is masked all the same
    found = kept_columns(weight, mask, kept, dtype)
    torch.testing.assert_close(found.float(), (weight * mask)[:, kept].detach(), **TYPES[dtype])
    factor = torch.randn(5, 6).to(dtype)
    (found * factor).sum().backward()
    wanted = torch.zeros(5, 9)
    wanted[:, kept] = factor.float()
    torch.testing.assert_close(weight.grad, wanted * mask, **TYPES[dtype])


@pytest.mark.parametrize("factor", [1.0, -1.0, 2.5])
@every_type
def test_cosine_distance_and_gradient(dtype, factor, threads):
    torch.manual_seed(2)
    prediction, target = torch.randn(40, 6).to(dtype).requires_grad_(), torch.randn(40, 6)
    exact = prediction.detach().double().requires_grad_()
    wanted = factor * (1 - torch.nn.functional.cosine_similarity(exact, target.double(), dim=1).mean())
    found = factor * cosine_distance(prediction, target)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-6)
    [mine], [exactly] = torch.autograd.grad(found, prediction), torch.autograd.grad(wanted, exact)
    torch.testing.assert_close(mine.double(), exactly, **TYPES[dtype])


def test_rows_of_zeros_have_distance_one_and_gradient_zero(threads):
    prediction = torch.zeros(3, 4, requires_grad=True)
    value = cosine_distance(prediction, torch.zeros(3, 4))
    value.backward()
    assert value.item() == 1 and not prediction.grad.any()


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("pairs", [0, 1, 2, 100, 3000])
def test_pairs_are_kept_alike_by_the_loop_and_by_torch(pairs, p):
    edge_index = torch.arange(2 * pairs).view(2, pairs)
    torch.manual_seed(5)
    looped = drop_edges(edge_index, p)
    torch.manual_seed(5)
    by_torch = drop_edges(edge_index.T.contiguous().T, p)  # what is not contiguous goes through torch
    assert torch.equal(looped, by_torch)


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9, 0.999])
def test_kept_pairs_are_independent_of_each_other(p):
    edge_index = torch.arange(1000).repeat(2, 1)
    torch.manual_seed(0)
    draws = torch.zeros(400, 1000)
    for draw in draws:
        draw[drop_edges(edge_index, p)[0]] = 1
    deviation = (p * (1 - p)) ** 0.5
    assert draws.mean().item() == pytest.approx(1 - p, abs=5 * deviation / 400_000**0.5)
    assert (
        draws.mean(dim=0) - (1 - p)
    ).abs().max() < 5.5 * deviation / 400**0.5  # each place alike, first and last too
    together = (draws[:, 1:] * draws[:, :-1]).mean().item()
    assert together == pytest.approx((1 - p) ** 2, abs=5 * (1 - p) / 399_600**0.5)


def test_dropping_from_few_pairs_and_from_none():
    torch.manual_seed(0)
    assert drop_edges(torch.empty(2, 0, dtype=torch.long), 0.5).shape == (2, 0)
    kept = sum(drop_edges(torch.zeros(2, 1, dtype=torch.long), 0.5).shape[1] for _ in range(2000))
    assert kept == pytest.approx(1000, abs=112)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("masked", [False, True], ids=["all columns", "some columns"])
@pytest.mark.parametrize("width", [2, 40], ids=["transform first", "average first"])
@every_type
def test_features_through_weight_and_graph(sparse, width, masked, dtype, threads):
    torch.manual_seed(3)
    edge_index, nodes = GRAPHS["random, with loops and doubles"]
    x = torch.rand(nodes, 30) * (torch.rand(nodes, 30) < 0.3)
    x[:, 4] = 0
    mask = (torch.rand(30) < 0.7).float()
    weight = torch.randn(width, 30, requires_grad=True)
    mask = mask if masked else None
    view = View(x.to_sparse_csr() if sparse else x, edge_index, feature_mask=mask)
    x = x if mask is None else x * mask
    exact = weight.detach().double().requires_grad_()
    wanted = reference.normalized_adjacency(edge_index, nodes) @ (x.double() @ exact.T)
    found = view.propagate_features(weight, dtype)
    torch.testing.assert_close(found.double(), wanted, **TYPES[dtype])
    upper = torch.randn(nodes, width)
    [mine] = torch.autograd.grad((found.float() * upper).sum(), weight)
    [exactly] = torch.autograd.grad((wanted * upper.double()).sum(), exact)
    torch.testing.assert_close(
        mine.double(), exactly, **(TYPES[dtype] if dtype == torch.float32 else {"atol": 0.1, "rtol": 5e-2})
    )
