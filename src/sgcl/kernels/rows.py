"""Passes over the rows of matrices: norm with activation, centring with scaling, cosines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgcl.buffers import empty
from sgcl.kernels.threads import in_parts, looped, loops, summed


def norm_prelu(z: Tensor, bias: Tensor, norm: nn.BatchNorm1d, slope: Tensor, dtype: torch.dtype) -> Tensor:
    """``prelu(norm(z + bias))`` as ``dtype``, with the norm's own mode and running statistics."""
    if not looped(z):
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
        in_parts(loops().scale_prelu, rows, z.numel(), z, scale, moved, np.float32(slope.item()), out)
        ctx.save_for_backward(z, scale, moved, slope, mean, rstd)
        ctx.training = norm.training
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        z, scale, moved, slope, mean, rstd = ctx.saved_tensors
        grad, rows = grads[0].contiguous(), len(z)
        factor = np.float32(slope.item())
        sums = summed(loops().scale_prelu_sums, 3, rows, z.shape[1], grad, z, mean.float(), scale, moved, factor)
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
        in_parts(loops().scale_prelu_gradient, rows, z.numel(), *parts)
        return out, for_bias, by_gain.float(), by_shift.float(), sums[2].sum().float().reshape(1), None, None


def _moments(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every column, in float64."""
    # Deviations from about the mean are small, so that summing them in float32, block by block, loses nothing.
    near = z[:: max(1, len(z) // 64)].float().mean(dim=0)
    sums = summed(loops().column_sums, 2, len(z), z.shape[1], z, near) / len(z)
    return sums[0] + near.double(), (sums[1] - sums[0] * sums[0]).clamp_(min=0)


def _update_running(norm: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    assert norm.num_batches_tracked is not None
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), norm.momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), norm.momentum)
    norm.num_batches_tracked.add_(1)


def centred_unit_rows(z: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of ``z`` minus their mean, scaled to length 1, as ``dtype``; without gradient."""
    if not looped(z):
        return F.normalize(z - z.mean(dim=0), dim=1).to(dtype)
    out = empty(z.shape, dtype)
    in_parts(loops().centred_unit_rows, len(z), z.numel(), z, _moments(z)[0].float(), out)
    return out


def cosine_distance(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean of 1 - cosine over the rows of two matrices ``[N, d]``, with a gradient for ``prediction`` only."""
    if not looped(prediction, target):
        return 1 - F.cosine_similarity(prediction.to(target.dtype), target.detach(), dim=1).mean()
    distance: Tensor = _CosineDistance.apply(prediction, target)  # type: ignore[no-untyped-call]
    return distance


class _CosineDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, prediction: Tensor, target: Tensor) -> Tensor:
        rows = len(prediction)
        out = empty(prediction.shape, prediction.dtype)
        share = np.float32(1 / rows)
        totals = in_parts(loops().cosine_rows, rows, prediction.numel(), prediction, target, share, out)
        ctx.save_for_backward(out)
        return torch.tensor(1 - sum(totals) / rows, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        factor = grads[0].item()
        return gradient if factor == 1 else gradient * factor, None
