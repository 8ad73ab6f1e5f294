"""Tables of benchmarks/pictures/prototype_options.py: python benchmarks/pictures/prototype_options_report.py [--cache] [--out]"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from job_lines import finished
from prototype_options import (
    BATCH,
    BUDGETS,
    CLASSES,
    CLIP,
    COUNTS,
    DELTA,
    EPOCHS,
    RARE,
    RESULTS,
    ROUNDS,
    SITES,
    WARM,
    XRAY_TEST,
    XRAY_TRAIN,
    Job,
    jobs,
)

SETTINGS = f"""\
Printed by benchmarks/pictures/prototype_options_report.py from {{runs}} of {{wanted}} jobs, on one core of a shared machine
without a GPU. Maps of a frozen EfficientNet-Lite0. Birds: the first {CLASSES} classes of CUB-200-2011, 224 x 224, 300
training pictures at {SITES} sites. X-rays: PneumoniaMNIST brought from 28 to 128 pixels, {XRAY_TRAIN} training pictures at each
of {SITES} sites, {XRAY_TEST} test pictures; *rare*: {RARE} sick for one healthy in training, the test pictures as they are. 10
prototypes of 128 numbers for each class, a warm-up of {WARM * EPOCHS} epochs and {ROUNDS} rounds of {EPOCHS}, batches of {BATCH}. Per cent on all
test pictures after push and last layer, mean over sites and seeds; +- half a 95 % interval over seeds (Student's t).
*Less plain*: the same seeds' difference to the first row of the same sharing. With so few seeds only large differences
can be told: where the interval of a difference holds 0, nothing was shown. No setting was chosen on these numbers;
"cosine strong" (clst 2, sep 0.4, rate 0.01) was written down before the first run and is not ProtoPNeXt's own tuning."""

MIXES = """\
A site goes on from the shared prototypes with a part of its own: by their distance (ours; the thesis names no formula),
or always half. *Alone*: nothing is shared."""
COSINE = "Of birds. The same training; only the similarity differs, and in the last row clst, sep and the rate."
BALANCE = """\
Balanced accuracy of X-rays, as the thesis reports it, and plain accuracy. *none*: as the pictures are; *inverse*: class
weights; *undersample*: as many training pictures of the larger class as of the smaller, at each site."""
SHOWN = f"""\
Prototypes as they would be shown, clipped to {CLIP:g} and with noise for delta {DELTA:g}, put back in place of the exact ones,
and the last layer fitted anew at each site: *own*, in the site's own model; *mean*, the mean of what all sites show, in
each site's model. *Exact*: without noise and clipping. *First*, a rival that spends nothing: the prototypes that training
began with, drawn from the seed, which tell nothing of any picture, and a last layer fitted to them; the layers below are
the site's own, trained. Neighbours are any two sets of pictures (the whole ball's diameter): nothing smaller holds, since
the nearest patch and the layers below depend on every picture. One draw of the noise a seed. Whoever guesses has
{100 / CLASSES:g} % of birds; of the X-rays about 73 % are of one class. An epsilon above 10 or so promises next to nothing; the
large ones are there to see where the accuracy comes back."""

Found = dict[Job, dict[str, Any]]


def interval(values: Sequence[float]) -> str:
    if not len(values):
        return ""
    mean, n = float(np.mean(values)), len(values)
    half = t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5 if n > 1 else 0
    return f"{mean:.1f} +- {half:.1f}" if n > 1 else f"{mean:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def scores(found: Found, data: str, share: str, option: str, metric: str, when: str = "after") -> dict[int, float]:
    of = [j for j in found if (j.data, j.share, j.option) == (data, share, option) and when in found[j]]
    return {j.seed: 100 * float(np.mean(found[j][when][metric])) for j in sorted(of)}


def less(one: dict[int, float], other: dict[int, float]) -> str:
    return interval([one[s] - other[s] for s in sorted(set(one) & set(other))]) if one != other else ""


def lines_of(found: Found, data: str, share: str, options: dict[str, str], metrics: Sequence[str]) -> list[list[str]]:
    rows = []
    for option, title in options.items():
        columns = [str(len(scores(found, data, share, option, metrics[0])))]
        for metric in metrics:
            mine, plain = (scores(found, data, share, o, metric) for o in (option, ""))
            columns += [interval(list(mine.values())), less(mine, plain)]
        if columns[0] != "0":
            rows.append([title, *columns])
    return rows


def mixes(found: Found) -> list[str]:
    rows = []
    for data, metric in (("birds", "accuracy"), ("xray", "balanced")):
        rows += lines_of(found, data, "no", {"": f"{data}, alone"}, [metric])
        for share in ("prototypes", "add-on"):
            titles = {"": "plain", "distance": "by the distance", "half": "half"}
            options = {o: f"{data}, {share} shared, {title}" for o, title in titles.items()}
            rows += lines_of(found, data, share, options, [metric])
    return table(["birds: accuracy; xray: balanced accuracy", "seeds", "after", "less plain"], rows)


def cosines(found: Found) -> list[str]:
    rows = []
    for share, title in (("no", "alone"), ("prototypes", "prototypes shared"), ("add-on", "add-on shared")):
        options = {"": f"{title}, log", "cosine": f"{title}, cosine", "cosine strong": f"{title}, cosine strong"}
        for row, option in zip(
            lines_of(found, "birds", share, options, ["accuracy"]),
            [o for o in options if there(found, share, o)],
            strict=True,
        ):
            earlier = scores(found, "birds", share, option, "accuracy", "before")
            rows.append([*row, interval(list(earlier.values()))])
    return table(["accuracy", "seeds", "after", "less log", "before push and last layer"], rows)


def there(found: Found, share: str, option: str) -> bool:
    return bool(scores(found, "birds", share, option, "accuracy"))


def balances(found: Found) -> list[str]:
    rows = []
    for data in ("xray", "xray rare"):
        for share in ("prototypes", "no"):
            if data == "xray" and share == "no":
                continue
            options = {o: f"{data}, {share} shared, {o or 'none'}" for o in ("", "inverse", "undersample")}
            rows += lines_of(found, data, share, options, ["balanced", "accuracy"])
    return table(["", "seeds", "balanced", "less none", "accuracy", "less none"], rows)


def shown(found: Found) -> list[str]:
    rows = []
    budgets = [f"{e:g}" for e in BUDGETS]
    for data in ("birds", "xray"):
        for share in ("prototypes", "add-on"):
            held = [v for v in (found[j].get("released") for j in sorted(found) if j[1:] == (data, share, "")) if v]
            if held:
                blank = [""] * len(budgets)
                first = interval([100 * v["first"] for v in held])
                rows.append([f"{data}, {share} shared, first", str(len(held)), *blank, first])
            for what in ("own", "mean"):
                for count in COUNTS if held else ():
                    cells = [
                        interval([100 * v[f"{what}, {count}, {budget}"] for v in held])
                        for budget in (*budgets, "exact")
                    ]
                    rows.append([f"{data}, {share} shared, {what}, {count} of a class", str(len(held)), *cells])
    return table(["accuracy", "seeds", *(f"epsilon {b}" for b in budgets), "exact"], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".md"))
    given = parser.parse_args()
    found: Found = {Job(*v["job"]): v for v in finished(given.cache).values()}
    missing = [", ".join(map(str, j)) for j in jobs() if j not in found]
    lines = [
        f"# Options of inDISCO, {time.strftime('%Y-%m-%d')}",
        "",
        SETTINGS.format(runs=len(found), wanted=len(found) + len(missing)),
        "",
        *("## A part of one's own prototypes", "", MIXES, "", *mixes(found)),
        *("## Cosine similarity", "", COSINE, "", *cosines(found)),
        *("## Undersampling and class weights", "", BALANCE, "", *balances(found)),
        *("## Prototypes shown under a budget", "", SHOWN, "", *shown(found)),
        f"Not run: {'; '.join(missing) or 'nothing'}.",
    ]
    given.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
