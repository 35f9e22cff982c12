"""Memory that one training step leaves to the next.

A step asks for the same large matrices again and again. The general allocator either keeps them in a heap full of holes
(up to twice the memory), or returns them to the system and waits for zeroed pages (up to twice the time).
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_LEAST = 1 << 18
"""Bytes below which the general allocator serves as well."""

_active = threading.local()


class Buffers:
    """Blocks of memory, each given out again once no tensor made of it is left."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    @property
    def bytes(self) -> int:
        """Size of all blocks."""
        return sum(block.size for block in self._blocks)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor of undefined content."""
        size = math.prod(shape) * dtype.itemsize
        step = 1 << max(size.bit_length() - 4, 0)  # what varies a little from step to step fits into the same block
        room = -(-size // step) * step
        return self._block(room).tensor(size).view(dtype).view(shape)

    def _block(self, size: int) -> _Block:
        free = [block for block in self._blocks if block.is_free]
        if fitting := [block for block in free if size <= block.size <= 1.25 * size]:
            return min(fitting, key=lambda block: block.size)
        # A free one that is a little too small was made for this request: replaced, not kept beside.
        for block in free:
            if size <= 1.25 * block.size < 1.25 * size:
                self._blocks.remove(block)
                break
        self._blocks.append(_Block(size))
        return self._blocks[-1]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within, this thread's :func:`empty` takes from here."""
        before, _active.buffers = getattr(_active, "buffers", None), self
        try:
            yield
        finally:
            _active.buffers = before


class _Block:
    """Memory that counts its readers: a tensor's storage refers to the array it was made from until it is freed."""

    def __init__(self, size: int) -> None:
        self.size, self._owner = size, np.empty(size + 64, np.uint8)
        self._start = -self._owner.ctypes.data % 64  # torch's own alignment
        self._idle = sys.getrefcount(self._owner)

    @property
    def is_free(self) -> bool:
        return sys.getrefcount(self._owner) == self._idle

    def tensor(self, size: int) -> Tensor:
        return torch.from_numpy(self._owner[self._start : self._start + size])


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """``torch.empty``, from the active :class:`Buffers` where there are any and the tensor is large."""
    buffers: Buffers | None = getattr(_active, "buffers", None)
    if buffers is None or torch.device(device).type != "cpu" or math.prod(shape) * dtype.itemsize < _LEAST:
        return torch.empty(*shape, dtype=dtype, device=device)
    return buffers.empty(shape, dtype)
