"""Calling compiled loops: on which matrices, for which rows, in how many threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL = 1 << 16
"""Entries below which a loop is not worth a second thread."""


def looped(*matrices: Tensor) -> bool:
    """Whether the compiled loops read these matrices."""
    return all(
        one.device.type == "cpu" and one.dtype in (torch.float32, torch.bfloat16) and one.is_contiguous()
        for one in matrices
    )


@cache
def loops() -> Any:
    """The compiled loops, imported with their compiler when first called."""
    from sgcl.kernels import loops as compiled

    return compiled


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(count, thread_name_prefix="sgcl")
    # After each parallel operation the threads of torch's OpenMP pool spin for milliseconds, on the very cores that
    # the loops need next: without this, a step on Physics takes 1.3 times as long. GNU's OpenMP hardly spins once it
    # manages more threads than there are cores, as it does when a parallel operation was started from another thread.
    pool.submit(torch.ones(1 << 17).add_, 1).result()
    return pool


def array(one: Any) -> Any:
    """What a loop reads: NumPy's view of a tensor, bfloat16 as uint16; anything else as it is."""
    if not isinstance(one, Tensor):
        return one
    one = one.detach()
    return (one.view(torch.uint16) if one.dtype == torch.bfloat16 else one).numpy()


def in_parts(loop: Callable[..., Any], rows: int, work: int, *arguments: Any) -> list[Any]:
    """Call ``loop(*arguments, lo, hi)`` for parts of ``rows``, one per thread; the results in order."""
    arrays = [array(one) for one in arguments]
    count = torch.get_num_threads() if work > SMALL else 1
    if count == 1:
        return [loop(*arrays, 0, rows)]
    bounds = [rows * part // count for part in range(count + 1)]
    pool = _threads(count - 1)
    others = [pool.submit(loop, *arrays, lo, hi) for lo, hi in pairwise(bounds[1:])]
    return [loop(*arrays, bounds[0], bounds[1]), *(one.result() for one in others)]


def summed(loop: Callable[..., Any], kinds: int, rows: int, width: int, *arguments: Any) -> Tensor:
    """Float64 sums ``[kinds, width]`` that ``loop(*arguments, sums, lo, hi)`` adds to, over all rows."""
    arrays = [array(one) for one in arguments]

    def part(lo: int, hi: int) -> Any:
        sums = np.zeros((kinds, width))
        loop(*arrays, sums, lo, hi)
        return sums

    return torch.from_numpy(sum(in_parts(part, rows, rows * width)))
