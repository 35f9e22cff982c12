"""Loops over the rows of matrices, compiled for the CPU; each call does rows ``lo`` to ``hi`` and holds no lock.

Matrices are float32, or bfloat16 seen as uint16. Column statistics are summed in float64, block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

_BLOCK = 64
"""Rows whose statistics are summed in float32 before they are added to the float64 sums."""

_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "arcp", "nsz", "reassoc"}, "cache": True}


def _read(value):
    """A matrix entry as float32."""


def _as(value, like):
    """A float32 in the type of the matrix that ``like`` is an entry of; bfloat16 rounds to nearest even."""


@overload(_read)
def _read_typed(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(_as)
def _as_typed(value, like):
    if like == types.uint16:

        def to_bfloat16(value, like):
            bits = np.float32(value).view(np.uint32)
            return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))

        return to_bfloat16
    return lambda value, like: np.float32(value)


@njit(**_OPTIONS)
def _weighted_rows(values, col, start, end, dense, total):
    """``total`` = sum over k of ``values[k] * dense[col[k]]``, several terms at a time: ``total`` is in memory."""
    width = len(total)
    k = start
    if k == end:
        total[:] = 0
    elif (end - k) % 2:
        a, one = values[k], dense[col[k]]
        for j in range(width):
            total[j] = a * _read(one[j])
        k += 1
    else:
        a, b, one, two = values[k], values[k + 1], dense[col[k]], dense[col[k + 1]]
        for j in range(width):
            total[j] = a * _read(one[j]) + b * _read(two[j])
        k += 2
    if (end - k) % 4:
        a, b, one, two = values[k], values[k + 1], dense[col[k]], dense[col[k + 1]]
        for j in range(width):
            total[j] += a * _read(one[j]) + b * _read(two[j])
        k += 2
    while k < end:
        a, b, one, two = values[k], values[k + 1], dense[col[k]], dense[col[k + 1]]
        c, d, three, four = values[k + 2], values[k + 3], dense[col[k + 2]], dense[col[k + 3]]
        for j in range(width):
            total[j] += (a * _read(one[j]) + b * _read(two[j])) + (c * _read(three[j]) + d * _read(four[j]))
        k += 4


@njit(**_OPTIONS)
def spmm(crow, col, values, dense, out, lo, hi):
    """``out[lo:hi] = matrix[lo:hi] @ dense`` for a CSR matrix."""
    width = dense.shape[1]
    total = np.empty(width, np.float32)
    for i in range(lo, hi):
        _weighted_rows(values, col, crow[i], crow[i + 1], dense, total)
        row = out[i]
        for j in range(width):
            row[j] = _as(total[j], row[j])


@njit(**_OPTIONS)
def spmm_masked(crow, col, values, use, dense, out, lo, hi):
    """``out[lo:hi] = matrix[lo:hi] @ diag(use) @ dense``; rows of ``dense`` that are not used are not read."""
    width = dense.shape[1]
    total = np.empty(width, np.float32)
    longest = 0
    for i in range(lo, hi):
        longest = max(longest, crow[i + 1] - crow[i])
    used_col, used_values = np.empty(longest, col.dtype), np.empty(longest, values.dtype)
    for i in range(lo, hi):
        count = 0
        for k in range(crow[i], crow[i + 1]):
            if use[col[k]]:
                used_col[count], used_values[count] = col[k], values[k]
                count += 1
        _weighted_rows(used_values, used_col, 0, count, dense, total)
        row = out[i]
        for j in range(width):
            row[j] = _as(total[j], row[j])


@njit(**_OPTIONS)
def spmm_rows(crow, col, values, use, dense, out, lo, hi):
    """``out[lo:hi] = diag(use) @ matrix[lo:hi] @ dense``; rows that are not used are set to 0."""
    width = dense.shape[1]
    total = np.empty(width, np.float32)
    for i in range(lo, hi):
        if use[i]:
            _weighted_rows(values, col, crow[i], crow[i + 1], dense, total)
        else:
            total[:] = 0
        row = out[i]
        for j in range(width):
            row[j] = _as(total[j], row[j])


@njit(**_OPTIONS)
def spmm_columns(crow, col, values, dense, kept, out, lo, hi):
    """``out[lo:hi] = matrix[lo:hi] @ dense[:, kept]``."""
    total, some = np.empty(dense.shape[1], np.float32), np.empty(len(kept), np.float32)
    for i in range(lo, hi):
        _weighted_rows(values, col, crow[i], crow[i + 1], dense, total)
        row = out[i]
        for j in range(len(kept)):
            some[j] = total[np.uint64(kept[j])]  # unsigned: nothing is counted from the end
        for j in range(len(kept)):
            row[j] = _as(some[j], row[j])


@njit(**_OPTIONS)
def kept_columns(weight, kept, factor, out, lo, hi):
    """``out[lo:hi] = weight[lo:hi, kept] * factor``."""
    for i in range(lo, hi):
        row, made = weight[i], out[i]
        for j in range(len(kept)):
            made[j] = _as(row[np.uint64(kept[j])] * factor[j], made[j])


@njit(**_OPTIONS)
def spread_columns(grad, kept, factor, out, lo, hi):
    """``out[lo:hi, kept] = grad[lo:hi] * factor``, other columns 0."""
    for i in range(lo, hi):
        row, made = grad[i], out[i]
        made[:] = 0
        for j in range(len(kept)):
            made[np.uint64(kept[j])] = _read(row[j]) * factor[j]


@njit(**_OPTIONS)
def column_sums(z, near, sums, lo, hi):
    """Add to ``sums`` ``[2, d]``, over rows ``lo`` to ``hi``, deviations from ``near`` and their squares."""
    width = z.shape[1]
    part = np.empty((2, width), np.float32)
    for start in range(lo, hi, _BLOCK):
        part[:] = 0
        for i in range(start, min(start + _BLOCK, hi)):
            row = z[i]
            for j in range(width):
                value = _read(row[j]) - near[j]
                part[0, j] += value
                part[1, j] += value * value
        for j in range(width):
            sums[0, j] += part[0, j]
            sums[1, j] += part[1, j]


@njit(**_OPTIONS)
def scale_prelu(z, scale, shift, slope, out, lo, hi):
    """``out = prelu(z * scale + shift)``."""
    width = z.shape[1]
    for i in range(lo, hi):
        row, made = z[i], out[i]
        for j in range(width):
            y = _read(row[j]) * scale[j] + shift[j]
            made[j] = _as(y if y > 0 else slope * y, made[j])


@njit(**_OPTIONS)
def scale_prelu_sums(grad, z, mean, scale, shift, slope, sums, lo, hi):
    """Add to ``sums`` ``[3, d]`` the gradient at ``y = z * scale + shift``, that times ``z - mean``, the slope's."""
    width = z.shape[1]
    part = np.empty((3, width), np.float32)
    for start in range(lo, hi, _BLOCK):
        part[:] = 0
        for i in range(start, min(start + _BLOCK, hi)):
            row, above = z[i], grad[i]
            for j in range(width):
                value = _read(row[j])
                y = value * scale[j] + shift[j]
                g = _read(above[j])
                below = np.float32(0) if y > 0 else g
                g = g if y > 0 else slope * g
                part[0, j] += g
                part[1, j] += g * (value - mean[j])
                part[2, j] += below * y
        for kind in range(3):
            for j in range(width):
                sums[kind, j] += part[kind, j]


@njit(**_OPTIONS)
def scale_prelu_gradient(grad, z, scale, shift, slope, by_z, by_one, out, lo, hi):
    """``out = scale * (gradient at y - by_z * z - by_one)``, with ``y = z * scale + shift``."""
    width = z.shape[1]
    for i in range(lo, hi):
        row, above, made = z[i], grad[i], out[i]
        for j in range(width):
            y = _read(row[j]) * scale[j] + shift[j]
            g = _read(above[j])
            g = g if y > 0 else slope * g
            made[j] = _as(scale[j] * (g - by_z[j] * _read(row[j]) - by_one[j]), made[j])


@njit(**_OPTIONS)
def centred_unit_rows(z, mean, out, lo, hi):
    """``out = (z - mean)``, rows scaled to length 1; a row of zeros stays."""
    width = z.shape[1]
    for i in range(lo, hi):
        row, made = z[i], out[i]
        square = np.float32(0)
        for j in range(width):
            value = _read(row[j]) - mean[j]
            square += value * value
        factor = np.float32(1) / max(np.sqrt(square), np.float32(1e-12))
        for j in range(width):
            made[j] = _as((_read(row[j]) - mean[j]) * factor, made[j])


@njit(**_OPTIONS)
def cosine_rows(prediction, target, share, out, lo, hi):
    """Sum of the rows' cosines; ``out`` is the gradient of ``-share`` times that sum at ``prediction``."""
    width = prediction.shape[1]
    total = 0.0
    for i in range(lo, hi):
        p, t, made = prediction[i], target[i], out[i]
        dot, pp, tt = np.float32(0), np.float32(0), np.float32(0)
        for j in range(width):
            a, b = _read(p[j]), _read(t[j])
            dot += a * b
            pp += a * a
            tt += b * b
        length, other = max(np.sqrt(pp), np.float32(1e-8)), max(np.sqrt(tt), np.float32(1e-8))
        cosine = dot / (length * other)
        total += cosine
        by_t, by_p = -share / (length * other), share * cosine / (length * length)
        for j in range(width):
            made[j] = _as(by_t * _read(t[j]) + by_p * _read(p[j]), made[j])
    return total


@njit(**_OPTIONS)
def transpose(crow, col, values, out_crow, out_col, out_values):
    """The transpose of a CSR matrix by counting; ``out_crow`` holds zeros."""
    rows, columns = len(crow) - 1, len(out_crow) - 1
    for k in range(len(col)):
        out_crow[col[k] + 1] += 1
    for j in range(columns):
        out_crow[j + 1] += out_crow[j]
    place = out_crow[:-1].copy()
    for i in range(rows):
        for k in range(crow[i], crow[i + 1]):
            at = place[col[k]]
            place[col[k]] += 1
            out_col[at], out_values[at] = i, values[k]


@njit(**_OPTIONS)
def spaced_pairs(edge_index, gaps, last, kept):
    """Copy columns of ``edge_index`` after ``last`` with ``gaps`` between them; returns their count and the last."""
    pairs, count = edge_index.shape[1], 0
    for k in range(len(gaps)):
        if gaps[k] >= pairs - 1 - last:
            return count, pairs
        last += np.int64(gaps[k]) + 1
        kept[0, count], kept[1, count] = edge_index[0, last], edge_index[1, last]
        count += 1
    return count, last


@njit(**_OPTIONS)
def with_loops(sender, receiver, crow, col, values):
    """CSR parts of the GCN's normalised adjacency from pairs sorted by receiver; ``crow`` holds zeros."""
    nodes = len(crow) - 1
    for k in range(len(receiver)):
        if sender[k] != receiver[k]:
            crow[receiver[k] + 1] += 1
    scale = np.empty(nodes, np.float32)
    for i in range(nodes):
        scale[i] = np.float32(1 / np.sqrt(np.float64(crow[i + 1] + 1)))
        crow[i + 1] += crow[i] + 1
    k = 0
    for i in range(nodes):
        at = crow[i]
        col[at], values[at] = i, scale[i] * scale[i]
        while k < len(receiver) and receiver[k] == i:
            if sender[k] != i:
                at += 1
                col[at], values[at] = sender[k], scale[sender[k]] * scale[i]
            k += 1
