"""What somebody who reads one site's reports, outside a sum, can tell of iFedAvg's private layers, which are in no message.

    python benchmarks/attacks/attack_layers.py        # seconds; writes results/attack_layers.md

What a layer of factors does follows from the linear layer beside it: of every step, w dw = sum of W dW over the
weights beside the factor, and db_in = w_in W d(offsets of the first layer). The reader adds that up over the reports,
with the middle of each round's weights, and undoes weight decay, which the study states. Nothing else is used: no rows,
no start other than the identity. Heart disease, four hospitals, 30 rounds, the drafted study and the paper's protocol.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.tensors import Params
from vitrail.data.encoding import prepare
from vitrail.engine.local import Engine
from vitrail.runs.setup import build_task, training_of, training_rows

SEEDS = (2934384, 10231938, 8273)
SETTINGS = {"drafted study": "", "the paper's protocol": "ifedavg"}
NAMES = {"input.shift": "b_in", "input.scale": "w_in", "output.shift": "b_out", "output.scale": "w_out"}
ROUNDS = 30


def read_layers(protocol: str, seed: int) -> tuple[Params, Params]:
    """What the reader guesses of each site's layers after the last round, and what they are; less the identity."""
    sites = vt.datasets.heart_disease()
    study = vt.Study.infer(sites, "disease", paper=protocol).with_changes(training={"rounds": ROUNDS})
    method = vt.methods.IFedAvg(output="each")
    task, training = build_task(study, method, seed), training_of(study)
    rows = training_rows(prepare(sites, study, seed), study, method, "cpu")
    engine = Engine(task, method, rows, training, seed, keep_reports=True)
    steps = torch.tensor([float(-(-n // training.batch)) for n in rows.sizes])
    sent = {k: v.clone() for k, v in task.start.items() if not k.startswith(("input", "output"))}
    guess = {k: torch.full((len(rows.sizes), len(task.start[k])), float(k.endswith("scale"))) for k in NAMES}
    for round_, moment in enumerate(engine.run()):
        if moment.stage > 0:
            break
        rate = training.schedule_rate(task.rule, round_, ROUNDS).lr / (1 - training.momentum)
        middle = {k: v + engine.reports.change[k] / 2 for k, v in sent.items()}
        decayed = rate * training.weight_decay * steps
        change = {k: engine.reports.change[k] + decayed.view(-1, *[1] * (v.dim() - 1)) * v for k, v in middle.items()}
        add_up(guess, middle, change)
        sent = {k: v.clone() for k, v in moment.coord.params.items()}
        truth = {k: moment.state.params[k].clone() for k in NAMES}
    return tuple({k: v - float(k.endswith("scale")) for k, v in of.items()} for of in (guess, truth))  # type: ignore[return-value]


def add_up(guess: Params, weights: Params, change: Params) -> None:
    first, last = weights["body.0.weight"], weights["head.weight"]
    guess["input.shift"] += guess["input.scale"] * (first @ change["body.0.bias"].unsqueeze(2)).squeeze(2)
    guess["output.shift"] += change["head.bias"]
    moved = (first * change["body.0.weight"]).sum(2)
    guess["input.scale"] = (guess["input.scale"] ** 2 + 2 * moved).clamp(min=0).sqrt()
    offsets = (weights["head.bias"] + guess["output.shift"]) * change["head.bias"]
    moved = (last * change["head.weight"]).sum(1) + offsets
    guess["output.scale"] = (guess["output.scale"] ** 2 + 2 * moved).clamp(min=0).sqrt()


def size(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [f"# What reports tell of private layers, {time.strftime('%Y-%m-%d')}", ""]
    lines += [" ".join(str(__doc__).split("\n\n", 2)[2].split()), ""]
    lines += [f"Over 4 hospitals and {len(SEEDS)} seeds: how the guesses go with the true numbers, both less the identity, "
              "and the root of the mean square of the error beside that of the number itself (always guessing the "
              "identity).", "", "| study | layer | correlation | error | size |", "| --- | --- | ---: | ---: | ---: |"]  # fmt: skip
    for words, protocol in SETTINGS.items():
        guesses, truths = zip(*(read_layers(protocol, seed) for seed in SEEDS), strict=True)
        for key, name in NAMES.items():
            guess, truth = (torch.cat([of[key].flatten() for of in run]).double() for run in (guesses, truths))
            together = float(torch.corrcoef(torch.stack([guess, truth]))[0, 1])
            lines.append(f"| {words} | {name} | {together:.3f} | {size(guess - truth):.3f} | {size(truth):.3f} |")
    out = Path(__file__).parent / "results" / "attack_layers.md"
    out.write_text("\n".join(lines) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    main()
