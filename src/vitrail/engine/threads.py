"""Threads of a run on one machine: one of torch's for each of ours."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch

from vitrail.core.tensors import release_memory


@cache
def threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class quiet_torch:  # noqa: N801
    """A pool of threads with one torch thread each, while inside; torch's own setting is put back after."""

    def __init__(self, device: torch.device) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.cpu = device.type == "cpu"

    def __enter__(self) -> ThreadPoolExecutor | None:
        if self.cpu:
            # glibc gives back what is free beyond twice the largest block that it has seen freed (32 MiB at most): show
            # it one, or every step on pictures faults its memory in again, a seventh of its time
            torch.empty(31 << 20, dtype=torch.uint8)
            self.before = torch.get_num_threads()
            torch.set_num_threads(1)
            self.pool = ThreadPoolExecutor(threads(), initializer=torch.set_num_threads, initargs=(1,))
        return self.pool

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.shutdown()
            torch.set_num_threads(self.before)
            release_memory()
