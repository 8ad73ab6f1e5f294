"""FLARE's processes begin here: `python -m vitrail.deploy.transport.flare.process MODULE WORDS...` runs a main module
of FLARE's with our guard around everything that it receives. Jobs are started by the two launchers below, in the same
way.
"""

from __future__ import annotations

import errno
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobLauncherSpec, JobProcessArgs, add_launcher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env, get_server_job_args
from nvflare.utils.process_utils import spawn_process

JOBS = ("nvflare.private.fed.app.client.worker_process", "nvflare.private.fed.app.server.runner_process")


def command(module: str, words: Sequence[str]) -> list[str]:
    return [sys.executable, "-u", "-m", "vitrail.deploy.transport.flare.process", module, *words]


class _Launcher(JobLauncherSpec):
    """A job's process. FLARE joins the words of its command by spaces and splits them there again, so that no path may
    have one; here they stay apart. No folder of a job's own code is put before Python's."""

    arguments: Sequence[str] = ()

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {}
        _, module = given[JobProcessArgs.EXE_MODULE]
        words = list[str]()
        for name in self.arguments:
            if name in given and name != JobProcessArgs.EXE_MODULE:
                flag, value = given[name]
                words += [flag, *(str(value).split() if name == JobProcessArgs.OPTIONS else [str(value)])]
        env = {**os.environ, **get_credential_env(given)}
        return ProcessHandle(process_adapter=spawn_process(command(module, words), env))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_JOB_LAUNCH:
            add_launcher(self, fl_ctx)


class SiteLauncher(_Launcher):
    arguments = get_client_job_args()


class CoordinatorLauncher(_Launcher):
    arguments = get_server_job_args()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def _end_with(parent: int) -> None:
    """A job ends with the process that began it; FLARE would look for its children in /proc first."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def main(words: Sequence[str]) -> None:
    from vitrail.deploy.transport.flare import guard as flare_guard
    from vitrail.deploy.transport.flare import limits as flare_limits

    module, *rest = words
    flare_guard.install()
    flare_limits.install_from_environment(flare_guard.too_long)
    psutil.pid_exists = _exists  # FLARE's own look at its parent reads /proc, which is outside the box
    if module in JOBS:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
