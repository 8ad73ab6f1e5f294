"""The one place where many jobs become processes, here or on other machines, without any study knowing.

A job is small and says what to do; `held` is large (the tables) and is sent once to each process. `work` is a function
of a module, so that a process can find it by name; it calls its `step` after every round, if it has rounds: there the
job can be stopped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from vitrail.core.errors import Problem, VitrailError

Job = TypeVar("Job")
Held = TypeVar("Held")
Result = TypeVar("Result")
Step = Callable[[int, int], None]  # of one job: done, in all
Work = Callable[[Job, Held, Step], Result]


def done(
    jobs: Sequence[Job],
    work: Work[Job, Held, Result],
    held: Held,
    workers: int = 1,
    progress: Callable[[Job, float], None] | None = None,
    lookup: Callable[[Job], Result | None] | None = None,
    store: Callable[[Job, Result], None] | None = None,
    cluster: str = "",
) -> list[Result]:
    """What every job came to, in the order of the jobs, whoever did them.

    A job whose result `lookup(job)` returns is not done again; `store(job, result)` is called with each new result as
    soon as it is here. progress(job, so far) says how many jobs are done, one that is under way here by its share,
    whenever there are more. With fewer than two `workers` all is done in this process; `cluster` is the address of a
    scheduler whose machines do it instead (cluster_executor.py). After an error or Ctrl-C no further job begins, and
    those under way end at their next step.
    """
    before = {i: lookup(job) for i, job in enumerate(jobs)} if lookup else {}
    results: dict[int, Result] = {i: result for i, result in before.items() if result is not None}
    left = {i: job for i, job in enumerate(jobs) if i not in results}
    reported = float(len(results))

    def tell(job: Job, so_far: float) -> None:
        nonlocal reported
        if progress and so_far > reported:
            reported = so_far
            progress(job, so_far)

    def keep(i: int, result: Result) -> None:
        results[i] = result
        if store:
            store(jobs[i], result)
        tell(jobs[i], len(results))

    if cluster and left:
        from vitrail.studies.cluster_executor import spread

        spread(cluster, left, work, held, keep)
    elif min(workers, len(left)) > 1:
        _spread(left, work, held, min(workers, len(left)), keep)
    else:
        for i, job in left.items():
            keep(i, work(job, held, lambda part, of, job=job: tell(job, len(results) + part / of)))  # type: ignore[misc]
    return [results[i] for i in range(len(jobs))]


def _spread(
    jobs: dict[int, Job], work: Work[Job, Held, Result], held: Held, workers: int, keep: Callable[[int, Result], None]
) -> None:
    """keep(number, result) as they end."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's locks in whatever state they are
    stop = context.Event()
    with ProcessPoolExecutor(workers, context, _remember, (held, stop)) as pool:
        waiting = {pool.submit(_work_there, work, job): i for i, job in jobs.items()}
        try:
            for future in as_completed(waiting):
                keep(waiting[future], future.result())
        except BrokenProcessPool:
            what = (
                "a process stopped in the middle of its work, most likely because the memory is too small for "
                "this many processes."
            )
            hint = "Use fewer --workers. Finished parts are stored in --out; continue with --resume."
            raise VitrailError("the work was not finished", [Problem("--workers", what, hint)]) from None
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


class Stopped(Exception):  # noqa: N818
    """Another job failed, or somebody pressed Ctrl-C: nobody waits for this one."""


_mine: list[Any] = []  # of a worker process: what it was sent once, and the sign to stop


def _remember(held: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the one who gave the job decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _mine[:] = held, stop


def _end_with_parent() -> None:
    """Where the one who gave the jobs was killed, nobody else would end this process."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _work_there(work: Work[Job, Any, Result], job: Job) -> Result:
    held, stop = _mine

    def step(part: int, of: int) -> None:
        if stop.is_set():
            raise Stopped

    step(0, 1)
    return work(job, held, step)
