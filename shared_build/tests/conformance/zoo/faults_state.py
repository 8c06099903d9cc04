"""Threads, processes, levels: results that depend on what else happens."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from shared_build.tests.conformance.zoo.faults import fault
from shared_build.tests.conformance.zoo.operator import AddScale, total_of


@fault("thread_counts", "threads against 1")
class ThreadDependent(AddScale):
    """The sum is split by the number of threads."""

    def mean_square(self, total):
        parts = total.square().tensor_split(torch.get_num_threads(), -1)
        sums = [total_of(part, -1) for part in parts if part.shape[-1]]
        return sum(sums[1:], sums[0]) / total.shape[-1]


@fault("concurrency", "thread")
class StaticScratch(AddScale):
    """All calls share one scratch buffer."""

    scratch = None

    def mean_square(self, total):
        self.scratch = super().mean_square(total)
        time.sleep(0.002)
        return (
            self.scratch
            if self.scratch.shape == total.shape[:-1]
            else self.scratch.new_zeros(total.shape[:-1])
        )


@fault("fork", "hung")
class OwnPool(AddScale):
    """A thread pool started by the first call does not survive a fork."""

    pool = None

    def mean_square(self, total):
        if self.pool is None:
            self.pool = ThreadPoolExecutor(1)
        return self.pool.submit(super().mean_square, total).result()


@fault("spawn", "spawned child failed")
class MainProcessOnly(AddScale):
    """Set-up happens in the main process only."""

    def mean_square(self, total):
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("the operator was not initialised in this process")
        return super().mean_square(total)


@fault("fresh_thread", "new thread failed")
class MainThreadOnly(AddScale):
    """The first call must come from the main thread."""

    started = False

    def mean_square(self, total):
        if not self.started and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the operator was not initialised in this thread")
        self.started = True
        return super().mean_square(total)


@fault("levels", "at kernel level default:[\\s\\S]*golden failed")
class WrongLowerLevel(AddScale):
    """The kernel of the lower level is wrong; the widest one hides it."""

    def mean_square(self, total):
        wrong = os.environ.get("OPWRIGHT_CPU_CAPABILITY") == "default"
        return super().mean_square(total) * (1.5 if wrong else 1.0)
