"""The few hot operations, behind plain functions: sparse products, norm with activation, and the loss's rows.

On the CPU, in float32 and bfloat16, they are compiled loops (:mod:`sgcl.loops`); elsewhere torch's own operations.
Nothing else in the package knows which.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from sgcl.buffers import empty

_SMALL = 1 << 16
"""Entries below which a loop is not worth a second thread."""

_LARGE = 1 << 24
"""Multiplications from which a product is worth more than one call."""


def build_csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A torch CSR tensor from its three parts, unchecked, without torch's notice that CSR is in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)


def row_pointers(counts: Tensor) -> Tensor:
    """CSR row pointers ``[n + 1]`` of rows that hold ``counts`` (``[n]``) entries."""
    pointers = counts.new_zeros(len(counts) + 1)
    torch.cumsum(counts, 0, out=pointers[1:])
    return pointers


class SparseMatrix:
    """A constant sparse matrix that multiplies dense ones and passes gradients through to them.

    The transpose, which the gradient needs, is made once, when first asked for, and kept.
    """

    def __init__(self, crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        if len(col) < 2**31 and max(shape) < 2**31:
            crow, col = crow.int(), col.int()  # half the traffic
        self.crow, self.col, self.values, self.shape = crow, col, values, shape

    @classmethod
    def from_torch(cls, matrix: Tensor) -> SparseMatrix:
        """The matrix of a torch CSR tensor."""
        rows, columns = matrix.shape
        return cls(matrix.crow_indices(), matrix.col_indices(), matrix.values(), (rows, columns))

    @classmethod
    def with_loops(cls, sender: Tensor, receiver: Tensor, num_nodes: int, dtype: torch.dtype) -> SparseMatrix:
        r"""The matrix of weights :math:`(d_i d_j)^{-1/2}` of pairs sorted by receiver and one loop per node.

        :math:`d_i` counts receiver ``i``'s pairs with others, and its loop. Loops among the pairs are passed over.
        """
        keep = sender != receiver
        entries = int(keep.sum()) + num_nodes
        if _looped(torch.empty(0, dtype=dtype, device=sender.device)):
            small = torch.int32 if entries < 2**31 else torch.int64
            crow, col = torch.zeros(num_nodes + 1, dtype=small), empty((entries,), small)
            values = empty((entries,), torch.float32)
            _loops().with_loops(*map(_array, (sender.contiguous(), receiver.contiguous(), crow, col, values)))
            return cls(crow, col, values, (num_nodes, num_nodes))
        sender, receiver = sender[keep], receiver[keep]
        counts = torch.bincount(receiver, minlength=num_nodes)
        nodes = torch.arange(num_nodes, device=sender.device)
        crow = row_pointers(counts + 1)
        # Every row starts with its loop, so the k-th pair is preceded by k pairs and receiver + 1 loops.
        col = torch.empty(entries, dtype=torch.int64, device=sender.device)
        values = torch.empty(entries, dtype=dtype, device=sender.device)
        place = torch.arange(len(sender), device=sender.device) + receiver + 1
        scale = (counts + 1).to(dtype).rsqrt()
        col[crow[:-1]], values[crow[:-1]] = nodes, scale * scale
        col[place], values[place] = sender, scale[sender] * scale[receiver]
        return cls(crow, col, values, (num_nodes, num_nodes))

    @cached_property
    def csr(self) -> Tensor:
        """The matrix as a torch CSR tensor."""
        return build_csr(self.crow, self.col, self.values, self.shape)

    @cached_property
    def T(self) -> SparseMatrix:
        """The transpose, in CSR form too."""
        rows, columns = self.shape
        if _looped(self.values):
            crow = torch.zeros(columns + 1, dtype=self.crow.dtype)
            col, values = empty(self.col.shape, self.col.dtype), empty(self.values.shape, self.values.dtype)
            _loops().transpose(*map(_array, (self.crow, self.col, self.values, crow, col, values)))
            return SparseMatrix(crow, col, values, (columns, rows))
        order = torch.argsort(self.col, stable=True)
        row_of = torch.repeat_interleave(torch.arange(rows, device=self.col.device), self.crow.diff().long())
        counts = torch.bincount(self.col, minlength=columns)
        return SparseMatrix(row_pointers(counts), row_of[order], self.values[order], (columns, rows))

    def scale_columns(self, factor: Tensor) -> SparseMatrix:
        """The matrix times ``diag(factor)``; entries that become zero stay stored."""
        return SparseMatrix(self.crow, self.col, self.values * factor[self.col], self.shape)

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.product(dense, self.values.dtype)

    def product(self, dense: Tensor, dtype: torch.dtype) -> Tensor:
        """The product with ``dense``, in type ``dtype``; the gradient for ``dense`` has its type."""
        product: Tensor = _Product.apply(dense, self, dtype)  # type: ignore[no-untyped-call]
        return product

    def times_weight(self, weight: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """``self @ diag(mask) @ weight.T`` in type ``dtype``, for ``weight`` ``[d, columns]``; no mask is all ones."""
        product: Tensor = _WeightProduct.apply(weight, self, mask, dtype)  # type: ignore[no-untyped-call]
        return product

    def times_columns(self, dense: Tensor, kept: Tensor | None, dtype: torch.dtype) -> Tensor:
        """``self @ dense[:, kept]`` in type ``dtype``, without gradient; ``None`` keeps all."""
        if kept is None:
            return self.times(dense, dtype)
        if not _looped(self.values, dense):
            return self.times(dense[:, kept], dtype)
        out = empty((self.shape[0], len(kept)), dtype)
        work = len(self.col) * dense.shape[1]
        _in_parts(_loops().spmm_columns, self.shape[0], work, self.crow, self.col, self.values, dense, kept, out)
        return out

    def times(self, dense: Tensor, dtype: torch.dtype) -> Tensor:
        """The product with ``dense``, in type ``dtype``, without gradient."""
        if not _looped(self.values, dense):
            return (self.csr @ dense.to(self.values.dtype)).to(dtype)
        out = empty((self.shape[0], dense.shape[1]), dtype)
        _in_parts(
            _loops().spmm, self.shape[0], len(self.col) * dense.shape[1], self.crow, self.col, self.values, dense, out
        )
        return out


class _WeightProduct(torch.autograd.Function):
    """A sparse matrix times a weight that lies the other way round, some columns masked."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrix: SparseMatrix, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.matrix, ctx.mask, ctx.dtype = matrix, mask, weight.dtype
        if not _looped(matrix.values, weight):
            masked = weight if mask is None else weight * mask
            return matrix.times(masked.T.to(matrix.values.dtype), dtype)
        standing = _transposed(weight, dtype)
        if mask is None:
            return matrix.times(standing, dtype)
        out = empty((matrix.shape[0], len(weight)), dtype)
        parts = (matrix.crow, matrix.col, matrix.values, mask, standing, out)
        _in_parts(_loops().spmm_masked, matrix.shape[0], len(matrix.col) * len(weight), *parts)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad, mask, turned = grads[0].contiguous(), ctx.mask, ctx.matrix.T
        if mask is None or not _looped(turned.values, grad):
            standing = turned.times(grad, ctx.dtype)
            flat = standing.T if mask is None else standing.T * mask
            return flat, None, None, None
        standing = empty((turned.shape[0], grad.shape[1]), ctx.dtype)
        parts = (turned.crow, turned.col, turned.values, mask, grad, standing)
        _in_parts(_loops().spmm_rows, turned.shape[0], len(turned.col) * grad.shape[1], *parts)
        return _transposed(standing, ctx.dtype), None, None, None


def kept_columns(weight: Tensor, mask: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
    """``(weight * mask)[:, kept]`` in type ``dtype``, for ``weight`` ``[d, columns]`` and increasing ``kept``."""
    made: Tensor = _KeptColumns.apply(weight, mask, kept, dtype)  # type: ignore[no-untyped-call]
    return made


class _KeptColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.factor, ctx.kept, ctx.dtype, ctx.columns = mask[kept], kept, weight.dtype, weight.shape[1]
        if not _looped(weight):
            some: Tensor = weight.index_select(1, kept) * ctx.factor
            return some.to(dtype)
        out = empty((len(weight), len(kept)), dtype)
        _in_parts(_loops().kept_columns, len(weight), out.numel(), weight, kept, ctx.factor, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].contiguous()
        if not _looped(grad):
            out = grad.new_zeros(len(grad), ctx.columns, dtype=ctx.dtype)
            out.index_copy_(1, ctx.kept, (grad * ctx.factor).to(ctx.dtype))
            return out, None, None, None
        out = empty((len(grad), ctx.columns), ctx.dtype)
        _in_parts(_loops().spread_columns, len(grad), out.numel(), grad, ctx.kept, ctx.factor, out)
        return out, None, None, None


def _transposed(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    return empty((matrix.shape[1], matrix.shape[0]), dtype).copy_(matrix.T)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: SparseMatrix, dtype: torch.dtype) -> Tensor:
        ctx.matrix, ctx.dtype = matrix, dense.dtype
        return matrix.times(dense.contiguous(), dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.matrix.T.times(grads[0].contiguous(), ctx.dtype), None, None


def spaced_pairs(edge_index: Tensor, gaps: Tensor, last: int) -> tuple[Tensor, int]:
    """The columns of ``edge_index`` after number ``last``, with ``gaps`` (whole float64) columns left out before each.

    Also returns the number of the last column reached: the count of columns, if the end was.
    """
    if edge_index.device.type != "cpu" or not edge_index.is_contiguous():
        positions = gaps.add(1).cumsum(0).long() + last
        within = int(torch.searchsorted(positions, edge_index.shape[1]))
        return edge_index[:, positions[:within]], min(int(positions[-1]), edge_index.shape[1])
    kept = torch.empty(2, len(gaps), dtype=edge_index.dtype)
    count, last = _loops().spaced_pairs(*map(_array, (edge_index, gaps, last, kept)))
    return kept[:, :count], last


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """``a @ b`` of dense matrices rounded to ``dtype``, in which the result is; sums inside are at least float32."""
    made: Tensor = _DenseProduct.apply(a, b, dtype)  # type: ignore[no-untyped-call]
    return made


class _DenseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.types = a.dtype, b.dtype
        left, right = _converted(a.contiguous(), dtype), b.to(dtype)
        by_left, by_right, _ = ctx.needs_input_grad
        ctx.save_for_backward(left if by_right else None, right if by_left else None)
        return _times(left, right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        left, right = ctx.saved_tensors
        grad = grads[0].contiguous()
        by_left = None if right is None else _converted(_times(grad, right.T), ctx.types[0])
        # Turned, as the weight behind a transposed b lies.
        by_right = None if left is None else rows_product(grad, left).T.to(ctx.types[1])
        return by_left, by_right, None


@cache
def _convolves() -> bool:
    """Whether float32 products go through oneDNN's convolutions, 1 by 1, instead of MKL's product.

    On AMD's processors MKL leaves half of their vector units unused. oneDNN does not, but torch has no product by it.
    """
    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    fast = torch.backends.cpu.get_cpu_capability() == "AVX512" and "mkl" in torch.__config__.show().lower()
    return amd and fast and torch.backends.mkldnn.is_available()


def _convolved(*matrices: Tensor) -> bool:
    alike = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in matrices)
    return alike and _convolves() and bool(torch.backends.mkldnn.enabled)


def _as_images(matrix: Tensor, images: int) -> Tensor:
    """Rows as pixels of ``images`` images, columns as their channels; no copy."""
    return matrix.view(images, 1, len(matrix) // images, matrix.shape[1]).permute(0, 3, 1, 2)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for ``a`` in row order."""
    out = empty((len(a), b.shape[1]), a.dtype, a.device)
    if not _convolved(a, b) or a.numel() * b.shape[1] < _LARGE:
        return torch.mm(a, b.contiguous(), out=out)  # b is small, and bfloat16 products of rows a twentieth faster
    kernel = b.T.contiguous()[:, :, None, None]
    for one, made in zip(a.split(2048), out.split(2048), strict=True):  # what conv2d allocates stays small
        made.copy_(F.conv2d(_as_images(one, 1), kernel).permute(0, 2, 3, 1).view(made.shape))
    return out


def rows_product(a: Tensor, b: Tensor) -> Tensor:
    """``a.T @ b``, summed over many rows, for ``a`` and ``b`` in row order and of one type."""
    if not _convolved(a, b) or a.numel() * b.shape[1] < _LARGE:
        return a.T @ b
    shape = torch.Size([a.shape[1], b.shape[1], 1, 1])
    total, done = a.new_zeros(shape[:2]), 0
    for images in (16, 4):  # of 256 pixels: oneDNN is slow where the number of pixels divides badly
        rows = 256 * images
        while len(a) - done >= rows:
            one, other = (_as_images(part[done : done + rows], images) for part in (a, b))
            total += conv2d_weight(other, shape, one).view(total.shape)
            done += rows
    return total.addmm_(a[done:].T, b[done:])


def _converted(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    return matrix if matrix.dtype == dtype else empty(matrix.shape, dtype, matrix.device).copy_(matrix)


def norm_prelu(z: Tensor, bias: Tensor, norm: nn.BatchNorm1d, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """``prelu(norm(z + bias))`` as ``dtype``, with the norm's own mode and running statistics."""
    if not _looped(z):
        return F.prelu(norm(z + bias), slope).to(dtype)
    made: Tensor = _NormPReLU.apply(z, bias, norm.weight, norm.bias, slope, norm, dtype)  # type: ignore[no-untyped-call]
    return made


class _NormPReLU(torch.autograd.Function):
    """Batch norm and PReLU in two passes forward and two backward, of which only the input is kept.

    In training mode a bias in front of the norm shifts nothing but the running mean, and has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        bias: Tensor,
        gain: Tensor,
        shift: Tensor,
        slope: Tensor,
        norm: nn.BatchNorm1d,
        dtype: torch.dtype,
    ) -> Tensor:
        rows = len(z)
        if norm.training:
            mean, variance = _moments(z)
            _update_running(norm, mean + bias, variance * (rows / (rows - 1)))
        else:
            assert norm.running_mean is not None and norm.running_var is not None
            mean, variance = (norm.running_mean - bias).double(), norm.running_var.double()
        rstd = (variance + norm.eps).rsqrt()
        scale = (gain * rstd).float()
        moved = (shift - mean * gain * rstd).float()
        out = empty(z.shape, dtype)
        _in_parts(_loops().scale_prelu, rows, z.numel(), z, scale, moved, np.float32(slope.item()), out)
        ctx.save_for_backward(z, scale, moved, slope, mean, rstd)
        ctx.training = norm.training
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, scale, moved, slope, mean, rstd = ctx.saved_tensors
        grad, rows = grads[0].contiguous(), len(z)
        factor = np.float32(slope.item())
        sums = _summed(_loops().scale_prelu_sums, 3, rows, z.shape[1], grad, z, mean.float(), scale, moved, factor)
        by_shift, by_gain = sums[0], rstd * sums[1]
        if ctx.training:
            by_z = rstd * by_gain / rows
            by_one = by_shift / rows - mean * by_z
            for_bias = torch.zeros_like(scale)
        else:
            by_z, by_one = torch.zeros_like(rstd), torch.zeros_like(rstd)
            for_bias = (by_shift * scale).float()
        out = empty(z.shape, z.dtype)
        parts = (grad, z, scale, moved, factor, by_z.float(), by_one.float(), out)
        _in_parts(_loops().scale_prelu_gradient, rows, z.numel(), *parts)
        return out, for_bias, by_gain.float(), by_shift.float(), sums[2].sum().float().reshape(1), None, None


def _moments(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every column, in float64."""
    # Deviations from about the mean are small, so that summing them in float32, block by block, loses nothing.
    near = z[:: max(1, len(z) // 64)].float().mean(dim=0)
    sums = _summed(_loops().column_sums, 2, len(z), z.shape[1], z, near) / len(z)
    return sums[0] + near.double(), (sums[1] - sums[0] * sums[0]).clamp_(min=0)


def _update_running(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), norm.momentum)
    norm.num_batches_tracked.add_(1)


def centred_unit_rows(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of ``z`` minus their mean, scaled to length 1, as ``dtype``; without gradient."""
    if not _looped(z):
        return F.normalize(z - z.mean(dim=0), dim=1).to(dtype)
    out = empty(z.shape, dtype)
    _in_parts(_loops().centred_unit_rows, len(z), z.numel(), z, _moments(z)[0].float(), out)
    return out


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of 1 - cosine over the rows of two matrices ``[N, d]``, with a gradient for ``prediction`` only."""
    if not _looped(prediction, target):
        return 1 - F.cosine_similarity(prediction.to(target.dtype), target.detach(), dim=1).mean()
    distance: Tensor = _CosineDistance.apply(prediction, target)  # type: ignore[no-untyped-call]
    return distance


class _CosineDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor) -> Tensor:
        rows = len(prediction)
        out = empty(prediction.shape, prediction.dtype)
        share = np.float32(1 / rows)
        totals = _in_parts(_loops().cosine_rows, rows, prediction.numel(), prediction, target, share, out)
        ctx.save_for_backward(out)
        return torch.tensor(1 - sum(totals) / rows, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        factor = grads[0].item()
        return gradient if factor == 1 else gradient * factor, None


def _looped(*matrices: Tensor) -> bool:
    """Whether the compiled loops read these matrices."""
    return all(
        one.device.type == "cpu" and one.dtype in (torch.float32, torch.bfloat16) and one.is_contiguous()
        for one in matrices
    )


@cache
def _loops() -> Any:
    import sgcl.loops

    return sgcl.loops


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, thread_name_prefix="sgcl")
    # After each parallel operation the threads of torch's OpenMP pool spin for milliseconds, on the very cores that
    # the loops need next: without this, a step on Physics takes 1.3 times as long. GNU's OpenMP hardly spins once it
    # manages more threads than there are cores, as it does when a parallel operation was started from another thread.
    pool.submit(torch.ones(1 << 17).add_, 1).result()
    return pool


def _array(one: Any) -> Any:
    """What a loop reads: NumPy's view of a tensor, bfloat16 as uint16; anything else as it is."""
    if not isinstance(one, Tensor):
        return one
    one = one.detach()
    return (one.view(torch.uint16) if one.dtype == torch.bfloat16 else one).numpy()


def _in_parts(loop: Callable[..., Any], rows: int, work: int, *arguments: Any) -> list[Any]:
    """Call ``loop(*arguments, lo, hi)`` for parts of ``rows``, one per thread; the results in order."""
    arrays = [_array(one) for one in arguments]
    count = torch.get_num_threads() if work > _SMALL else 1
    if count == 1:
        return [loop(*arrays, 0, rows)]
    bounds = [rows * part // count for part in range(count + 1)]
    pool = _threads(count - 1)
    others = [pool.submit(loop, *arrays, lo, hi) for lo, hi in pairwise(bounds[1:])]
    return [loop(*arrays, bounds[0], bounds[1]), *(one.result() for one in others)]


def _summed(loop: Callable[..., Any], kinds: int, rows: int, width: int, *arguments: Any) -> Tensor:
    """Float64 sums ``[kinds, width]`` that ``loop(*arguments, sums, lo, hi)`` adds to, over all rows."""
    arrays = [_array(one) for one in arguments]

    def part(lo: int, hi: int) -> Any:
        sums = np.zeros((kinds, width))
        loop(*arrays, sums, lo, hi)
        return sums

    return torch.from_numpy(sum(_in_parts(part, rows, rows * width)))
