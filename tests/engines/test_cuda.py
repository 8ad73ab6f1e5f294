"""The same numbers on a GPU, captured graph or not. Also runs without pytest: python tests/engines/test_cuda.py"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

if __name__ == "__main__":  # a GPU machine may have torch but neither pytest nor us
    here = Path(__file__).resolve()
    sys.path[:0] = [str(here.parents[1]), str(here.parents[2] / "src")]
else:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

from small import gap, make_sites, make_task, models, train
from vitrail import methods
from vitrail.engines.local import Training


def test_cuda_agrees_with_cpu() -> None:
    task = make_task(affine_in=True, affine_out="each")
    there = replace(task, start={k: v.cuda() for k, v in task.start.items()})
    training = Training(rounds=6, batch=8, lr=0.02, decays=2)  # a graph is captured anew when the rate changes
    for name in methods.TABLE:
        method = methods.build(name)
        for absent in (None, lambda s, r: torch.tensor([(i + r) % 4 == 0 for i in range(5)])):
            if method.pools_rows and absent:
                continue
            cpu = models(*train(method, task, make_sites(), training, absent=absent))
            engine, last = train(method, there, make_sites().to("cuda"), training, absent=absent)
            gpu = {s: {k: v.cpu() for k, v in m.items()} for s, m in models(engine, last).items()}
            difference = gap(cpu, gpu)
            print(f"{name:12s} absent sites: {absent is not None!s:5s} largest difference {difference:.1e}")
            assert difference < 1e-10, name


if __name__ == "__main__":
    test_cuda_agrees_with_cpu()
