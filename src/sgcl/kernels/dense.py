"""Products of dense matrices in either precision, by the fastest library that torch comes with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from sgcl.buffers import empty
from sgcl.kernels.threads import in_parts, looped, loops

_LARGE = 1 << 24
"""Multiplications from which a product is worth more than one call."""


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
def _has_onednn() -> bool:
    """Whether float32 products go through oneDNN instead of MKL, which leaves part of AMD's vector units unused."""
    try:
        amd = "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    fast = torch.backends.cpu.get_cpu_capability() == "AVX512" and "mkl" in torch.__config__.show().lower()
    return amd and fast and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(*matrices: Tensor) -> bool:
    alike = all(one.device.type == "cpu" and one.dtype == torch.float32 for one in matrices)
    return alike and _has_onednn() and bool(torch.backends.mkldnn.enabled)


def _times(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for ``a`` in row order."""
    if _by_onednn(a, b) and a.numel() * b.shape[1] >= _LARGE:
        # What torch.compile makes of a linear layer; outside of it, torch's own product is always MKL's.
        made: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T.contiguous(), None, "none", [], "")
        return made
    out = empty((len(a), b.shape[1]), a.dtype, a.device)
    return torch.mm(a, b.contiguous(), out=out)  # b is small, and bfloat16 products of rows a twentieth faster


def _as_images(matrix: Tensor, images: int) -> Tensor:
    """Rows as pixels of ``images`` images, columns as their channels; no copy."""
    return matrix.view(images, 1, len(matrix) // images, matrix.shape[1]).permute(0, 3, 1, 2)


def rows_product(a: Tensor, b: Tensor) -> Tensor:
    """``a.T @ b``, summed over many rows, for ``a`` and ``b`` in row order and of one type."""
    if not _by_onednn(a, b) or a.numel() * b.shape[1] < _LARGE:
        return a.T @ b
    # oneDNN has this product too, as the gradient of a convolution of one pixel.
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


def kept_columns(weight: Tensor, mask: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
    """``(weight * mask)[:, kept]`` in type ``dtype``, for ``weight`` ``[d, columns]`` and increasing ``kept``."""
    made: Tensor = _KeptColumns.apply(weight, mask, kept, dtype)  # type: ignore[no-untyped-call]
    return made


class _KeptColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.factor, ctx.kept, ctx.dtype, ctx.columns = mask[kept], kept, weight.dtype, weight.shape[1]
        if not looped(weight):
            some: Tensor = weight.index_select(1, kept) * ctx.factor
            return some.to(dtype)
        out = empty((len(weight), len(kept)), dtype)
        in_parts(loops().kept_columns, len(weight), out.numel(), weight, kept, ctx.factor, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grads[0].contiguous()
        if not looped(grad):
            out = grad.new_zeros(len(grad), ctx.columns, dtype=ctx.dtype)
            out.index_copy_(1, ctx.kept, (grad * ctx.factor).to(ctx.dtype))
            return out, None, None, None
        out = empty((len(grad), ctx.columns), ctx.dtype)
        in_parts(loops().spread_columns, len(grad), out.numel(), grad, ctx.kept, ctx.factor, out)
        return out, None, None, None
