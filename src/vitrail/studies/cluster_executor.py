"""Jobs on other machines: a Dask scheduler that somebody runs, and its workers, each with this Vitrail installed.

    dask scheduler                                   on one machine; it says its address
    dask worker tcp://ADDRESS --nthreads 1           on each of the others, one for each core
    vitrail compare ... --cluster tcp://ADDRESS

The rows are sent to every worker: a cluster is for tables that may lie in one place. A worker does one job at a time,
whatever its threads: jobs draw from generators that a process has one of.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from vitrail.core.errors import Problem, VitrailError

WAIT = 20.0  # seconds for a scheduler to answer, and for a first worker
CANNOT = "the cluster cannot be used"
_busy = threading.Lock()


def spread(address: str, jobs: dict[int, Any], work: Any, held: Any, keep: Callable[[int, Any], None]) -> None:
    """keep(number, result) as they end."""
    client = _reach(address)
    from distributed import KilledWorker, as_completed

    keys = {i: f"vitrail-{uuid.uuid4()}" for i in jobs}
    try:
        _same_program(client, address)
        there = client.scatter(held, broadcast=True, hash=False)
        waiting = {
            client.submit(_work_far, work, job, there, keys[i], key=keys[i], pure=False): i for i, job in jobs.items()
        }
        with client.as_current():
            for future in as_completed(waiting):
                keep(waiting[future], future.result())
    except KilledWorker:
        what = (
            "a worker stopped more than once in the middle of its work, most likely because it has too little memory."
        )
        hint = "Give the workers more memory. Finished parts are stored in --out; continue with --resume."
        raise VitrailError("the work was not finished", [Problem(address, what, hint)]) from None
    finally:
        client.close()  # after which nobody waits for what is under way: it ends at its next step


def _reach(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        what = "the package distributed, which connects to clusters, is not installed."
        raise VitrailError(CANNOT, [Problem("--cluster", what, "pip install 'vitrail[cluster]'")]) from None
    hint = (
        "Start `dask scheduler` and `dask worker` there, and give the address that the scheduler prints, "
        "as tcp://HOST:PORT."
    )
    try:
        client = Client(address, timeout=WAIT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        what = f"no scheduler answers at this address ({type(error).__name__})."
        raise VitrailError(CANNOT, [Problem(address, what, hint)]) from None
    try:
        client.wait_for_workers(1, timeout=WAIT)
    except TimeoutError:
        client.close()
        raise VitrailError(CANNOT, [Problem(address, "the scheduler has no worker.", hint)]) from None
    return client


def _same_program(client: Any, address: str) -> None:
    """Another version may give other numbers."""
    ours, problems = _versions(), []
    for worker, theirs in client.run(_versions).items():
        if theirs != ours:
            differences = ", ".join(f"{k} {v or 'missing'} (here {ours[k]})" for k, v in theirs.items() if v != ours[k])
            problems.append(
                Problem(f"{address}, worker {worker}", f"it has {differences}.", "Install the same version there.")
            )
    if problems:
        raise VitrailError(CANNOT, problems)


def _versions() -> dict[str, str]:
    out = {}
    for name in ("vitrail", "torch", "numpy", "pandas"):
        try:
            out[name] = version(name)
        except ImportError:
            out[name] = ""
    return out


def _work_far(work: Any, job: Any, held: Any, key: str) -> Any:
    from distributed import get_worker

    from vitrail.studies.executor import Stopped

    tasks = get_worker().state.tasks

    def step(part: int, of: int) -> None:
        task = tasks.get(key)
        if task is None or task.state == "cancelled":
            raise Stopped

    with _busy:
        step(0, 1)
        return work(job, held, step)
