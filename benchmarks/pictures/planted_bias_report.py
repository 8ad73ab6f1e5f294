"""Tables of benchmarks/pictures/planted_bias.py: python benchmarks/pictures/planted_bias_report.py [--cache] [--out] [--device]"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from scipy.stats import beta

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from biased_pictures import MARKS
from job_lines import finished
from planted_bias import DATA, RESULTS, SHARES, Job, jobs

from vitrail.analysis.images.occlusion_map import DECIDES
from vitrail.analysis.shortcuts import detector
from vitrail.analysis.shortcuts.detector import LEVEL, ShortcutSignals, judge, least_to_largest
from vitrail.core.facts import ALONE, OWN

MUCH = 0.30
HARM = 0.10  # points of accuracy, without the mark against with it
TITLES = {"xray": "X-rays", "cifar": "CIFAR-10", "cub": "birds"}
NAMED = {
    "distance": "largest distance",
    "travel": "travel alone",
    "piece": "piece alone",
    "margin": "margin alone",
    "before": "the rule of decision 022",
    "rule": "the rule",
}
BEFORE = {
    "WEIGHTS": {"piece": 0.5, "travel": 0.2, "easy": 0.05, "together": 0.25},
    "TOGETHER": ("piece", "travel", "easy"),
}
SOURCE = Path(__file__).parents[2] / "src" / "vitrail"
RULE = (
    "analysis/shortcuts/detector.py",
    "analysis/shortcuts/outliers.py",
    "methods/blocks/patch_transplant.py",
    "methods/blocks/shortcut_signals.py",
    "analysis/images/occlusion_map.py",
)
FROZEN = "346825753b2e241f04b276ac622d22d5440bff7f7030cf9ebd5f5bb441e679de"
WHEN = "on 2026-11-19 at 22:08 UTC"
Cell = tuple[int, int]
SETTINGS = """\
Printed by benchmarks/pictures/planted_bias_report.py. Sites hold every class, drawn at random; X-rays: {xray.train}
training and {xray.held} hold-out pictures of a class at a site, CIFAR-10: {cifar.train} and {cifar.held} (half as many
at 8 sites), both with the small backbone ({xray.width} channels at first) trained at the sites; birds: about 7 and 6,
features of a frozen EfficientNet-Lite0, of which no piece is told. CIFAR-10 is learned badly from so few pictures (see
the last table). inDISCO as the paper has it, with a model trained alone beside it. A mark is on a share of one site's
pictures of one class, in training and hold-out.

The mark *harms* where the site's model that was trained alone is at least {harm:.0f} points worse on all sites'
hold-out pictures of the class without the mark than on the same with it. It *spoils* where without the mark it is,
moreover, {harm:.0f} points worse than the model of the same site in the clean federation of the same seed (same cut,
same start): a mark that is only learned beside the class harms and spoils not.

Site first: the most suspicious cell (site and class) is at the marked site. Found: the marked cell is named. The
largest distance (the paper's, scaled from the least to the largest) names one cell in each federation, clean or not;
the others name cells by chance at a level of {level} for the whole federation. The simple rivals with the same
information are each signal alone, and the rule of decision 022, which knew no margins.

Goals: site first in >= 90 %, cell found in >= 80 % of the federations whose mark harms; at most {level} false alarms in
a clean federation; occlusion covers the mark in >= 90 % where it is what the model uses (where it harms)."""
FRESH = """\
The margin, the weights and the window of occlusion were chosen on federations of seeds 340 to 342 (X-rays) and on
made-up numbers. The rule was frozen {when}, and its judgement of the federations below was looked at once, after that.
Their training had begun before and does not depend on the rule. SHA-256 of the rule's files ({files}, one after the
other) when it was frozen: {frozen}; today: {today}."""
OLD = """\
Federations of seeds 11 to 30, made before sites told margins, on one H200 and its machine. The rule judges them without
margins, as it does where a site's program does not tell them. Its weights were compared on them too, so they are no
test. Occlusion here is by the mean over all pictures of the class: the rule of the window as it was before."""
SEEN = """\
What the alone model of the marked site looks at in the training pictures of the class, where the mark harms. Covers:
the window whose hiding costs most holds at least half of the mark; of a line, which takes another course in every
picture, it passes through the window in at least half of the marked pictures. By chance: the share of all windows of
which that is true. Boxes on the mark: of the class's pushed prototypes, those whose box and the mark overlap by half of
the smaller one. Gone: the share of the log-odds that goes with the window."""


class Verdict(NamedTuple):
    first: Cell
    named: list[Cell]
    by: list[tuple[str, ...]] = []  # noqa: RUF012 - signs that said so alone


def verdicts(told: dict[str, Any]) -> dict[str, Verdict]:
    facts = {k: np.array(v, float) for k, v in told["facts"].items()}
    margin = facts.pop("margin", None)
    out = judge(**facts, margin=margin)
    assert out is not None
    far = least_to_largest(out.distance)
    largest = _lowest(-far)
    found = {"distance": Verdict(largest, [largest])}
    for name in ("travel", "piece", "margin"):
        p = out.chances.get(name, np.full(out.chance.shape, np.nan))
        cells = [(int(s), int(c)) for s, c in np.argwhere(p * np.isfinite(p).sum() <= LEVEL)]
        found[name] = Verdict(_lowest(p), cells)
    with mock.patch.multiple(detector, **BEFORE):
        before = judge(**facts)
    found |= {"before": _verdict(before), "rule": _verdict(out)}
    return found


def _verdict(out: ShortcutSignals | None) -> Verdict:
    assert out is not None
    return Verdict(_lowest(out.chance), [(f.site, f.label) for f in out.found], [f.by for f in out.found])


def _lowest(table: Any) -> Cell:
    if not np.isfinite(table).any():
        return -1, -1
    s, c = np.unravel_index(int(np.nanargmin(table)), table.shape)
    return int(s), int(c)


class One(NamedTuple):
    """A federation and what is said of it."""

    job: Job
    told: dict[str, Any]
    by: dict[str, Verdict]
    clean: float = np.nan  # right without the mark, of the same pictures, had there never been one

    @property
    def spoils(self) -> bool:
        return self.harms and bool(self.clean - self.told[ALONE]["without"] >= HARM)

    @property
    def cell(self) -> Cell:
        return self.told["site"], self.told["label"]

    @property
    def harm(self) -> float:
        return float(self.told[ALONE]["with"] - self.told[ALONE]["without"])

    @property
    def harms(self) -> bool:
        return self.harm >= HARM


def share(hits: Sequence[bool]) -> str:
    return f"{np.mean(hits):.2f} ({sum(hits)} of {len(hits)})" if len(hits) else ""


def upper(hits: int, trials: int) -> float:
    return 1.0 if hits == trials else float(beta.ppf(0.95, hits + 1, trials - hits))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def places(every: Sequence[One]) -> list[tuple[str, list[One]]]:
    found = []
    for data, about in DATA.items():
        for sites in about.sites:
            some = [o for o in every if (o.job.data, o.job.sites) == (data, sites)]
            if some:
                found.append((f"{TITLES[data]}, {sites} sites", some))
    return [*found, ("all", list(every))]


def rules_of(every: Sequence[One]) -> list[str]:
    """Of federations without margins none are judged by them."""
    return [k for k in NAMED if k != "margin" or any("margin" in o.told["facts"] for o in every)]


def clean(every: Sequence[One]) -> list[str]:
    rows, rules = [], rules_of(every)
    for title, some in places([o for o in every if o.job.mark == "clean"]):
        alarms = {k: sum(len(o.by[k].named) for o in some) / max(1, len(some)) for k in rules}
        loud = sum(bool(o.by["rule"].named) for o in some)
        limit = f"{upper(loud, len(some)):.2f}" if some else ""
        rows.append([title, str(len(some)), *(f"{alarms[k]:.2f}" for k in rules), limit])
    head = ["clean: false alarms in a federation", "federations", *(NAMED[k] for k in rules), "95 % limit of the rule"]
    return table(head, rows)


def found(every: Sequence[One], harmful: bool) -> list[str]:
    rows = []
    for title, some in places([o for o in every if o.job.mark != "clean" and o.harms == harmful]):
        for k in rules_of(every) if some else ():
            first = share([o.by[k].first[0] == o.cell[0] for o in some])
            named = share([o.cell in o.by[k].named for o in some])
            others = np.mean([sum(c != o.cell for c in o.by[k].named) for o in some])
            rows.append([f"{title}: {NAMED[k]}", first, named, f"{others:.2f}"])
    what = "the mark harms" if harmful else "it does not harm"
    return table([what, "site first", "found", "others named in a federation"], rows)


def who_said_so(every: Sequence[One]) -> str:
    """By which signs unmarked cells were named."""
    wrong: list[str] = []
    for o in every:
        rule = o.by["rule"]
        cell = None if o.job.mark == "clean" else o.cell
        wrong += [" and ".join(by) or "all together" for c, by in zip(rule.named, rule.by, strict=True) if c != cell]
    counts = ", ".join(f"{wrong.count(by)} by {by}" for by in sorted(set(wrong)))
    return (
        f"Cells without a mark that the rule named, in all federations: {len(wrong)}{f' ({counts})' if wrong else ''}."
    )


def by_mark(every: Sequence[One]) -> list[str]:
    rows = []
    for mark in MARKS:
        for part in SHARES:
            some = [o for o in every if (o.job.mark, o.job.share) == (mark, part)]
            if some:
                mean = {(m, k): 100 * np.mean([o.told[m][k] for o in some]) for m in (ALONE, OWN) for k in ENDS}
                hurt = [o for o in some if o.harms]
                rows.append(
                    [
                        f"{mark}, {part:.0%}",
                        str(len(some)),
                        *(f"{mean[m, 'without']:.0f}, {mean[m, 'with']:.0f}" for m in (ALONE, OWN)),
                        str(len(hurt)),
                        str(sum(o.spoils for o in hurt)),
                        share([o.by["rule"].first[0] == o.cell[0] for o in hurt]),
                        share([o.cell in o.by["rule"].named for o in hurt]),
                    ]
                )
    head = ["mark, share of the class", "federations", "alone: without, with the mark", "shared: without, with"]
    return table([*head, "harm", "spoil", "of those that harm: site first", "found"], rows)


ENDS = ("without", "with")


def decided(every: Sequence[One]) -> str:
    """How often a site's private page would say that one place decides."""
    rest = [g > DECIDES for o in every if o.job.mark == "clean" for g in o.told.get("gone", ())]
    some = [o.told["gone"] > DECIDES for o in every if o.job.data == "xray" and o.job.mark != "clean" and o.harms]
    return (
        "A site's private page says that one place decides where more than half of the log-odds go with one window. Of "
        f"X-rays it would say so of {share(rest)} classes of clean sites, and of {share(some)} marked ones that harm: "
        "a question to look at pictures, not a finding."
    )


def looked(every: Sequence[One]) -> list[str]:
    rows = []
    for mark in MARKS:
        for title, some in places([o for o in every if o.job.mark == mark and o.harms]):
            if some:
                numbers = [f"{np.mean([o.told[k] for o in some]):.2f}" for k in ("by chance", "boxes", "gone")]
                rows.append([f"{mark}; {title}", share([bool(o.told["covers"]) for o in some]), *numbers])
    return table(["mark", "covers", "by chance", "boxes on the mark", "gone"], rows)


def accuracy(every: Sequence[One]) -> list[str]:
    rows = []
    for title, some in places([o for o in every if o.job.mark == "clean"])[:-1]:
        rows.append([title, *(f"{100 * np.mean([o.told[m]['accuracy'] for o in some]):.0f}" for m in (ALONE, OWN))])
    return table(["clean: accuracy on all hold-out pictures", "alone", "prototypes shared"], rows)


def goals(every: Sequence[One]) -> list[str]:
    hurt, quiet = ([o for o in every if (o.job.mark == "clean") == clean] for clean in (False, True))
    rows = []
    for what, some in (
        ("harms", [o for o in hurt if o.harms]),
        (f"harms by {100 * MUCH:.0f} points", [o for o in hurt if o.harm >= MUCH]),
        ("spoils", [o for o in hurt if o.spoils]),
    ):
        for rule in ("rule", "before"):
            named = [o.by[rule] for o in some]
            firsts = [v.first[0] == o.cell[0] for v, o in zip(named, some, strict=True)]
            cells = [o.cell in v.named for v, o in zip(named, some, strict=True)]
            rows.append(against(f"{NAMED[rule]}, the mark {what}: site first", firsts, 0.9))
            rows.append(against(f"{NAMED[rule]}, the mark {what}: cell found", cells, 0.8))
        rows.append(against(f"the mark {what}: occlusion covers it", [bool(o.told["covers"]) for o in some], 0.9))
    for rule in ("rule", "before") if quiet else ():
        alarms = [bool(o.by[rule].named) for o in quiet]
        rows.append(against(f"{NAMED[rule]}, clean: an alarm", alarms, LEVEL, -1))
    return table(["all federations", "", "95 % interval", "goal", ""], rows)


def against(title: str, hits: Sequence[bool], goal: float, sign: int = 1) -> list[str]:
    met = "" if not hits else "met" if sign * (np.mean(hits) - goal) >= 0 else "missed"
    low, high = exact(sum(hits), len(hits))
    return [title, share(hits), f"{low:.2f} to {high:.2f}" if hits else "", f"{'>=' if sign > 0 else '<='} {goal}", met]


def exact(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's."""
    low = float(beta.ppf(0.025, hits, trials - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(0.975, hits + 1, trials - hits)) if hits < trials else 1.0


def part(every: Sequence[One]) -> list[str]:
    return [
        *goals(every),
        *clean(every),
        who_said_so(every),
        "",
        *found(every, True),
        *found(every, False),
        *by_mark(every),
        SEEN,
        "",
        *looked(every),
        decided(every),
        "",
        *accuracy(every),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".md"))
    parser.add_argument("--device", default="a CPU")
    given = parser.parse_args()
    done = {Job(*v["job"]): v for v in finished(given.cache).values()}
    every = []
    for job, told in done.items():
        same = done.get(job._replace(mark="clean", share=0.0))
        every.append(One(job, told, verdicts(told), same[ALONE]["without"] if same else np.nan))
    about = {"harm": 100 * HARM, "level": LEVEL, **{k: DATA[k] for k in ("xray", "cifar")}}
    fresh = [o for o in every if "margin" in o.told["facts"]]
    old = [o for o in every if "margin" not in o.told["facts"]]
    today = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in RULE)).hexdigest()
    same = "the same" if today == FROZEN else today
    wanted = [f"{title}: {len(some)}" for title, some in places([One(j, {}, {}) for j in jobs()])]
    lines = [
        f"# Marks planted in pictures, {time.strftime('%Y-%m-%d')}",
        "",
        SETTINGS.format(**about),
        "",
        f"## Fresh seeds: {len(fresh)} federations on {given.device}",
        "",
        FRESH.format(when=WHEN, files=", ".join(RULE), frozen=FROZEN, today=same),
        "",
        *part(fresh),
        f"Planned are {'; '.join(wanted)} federations. Done: "
        + "; ".join(f"{title}: {len(some)}" for title, some in places(fresh))
        + ".",
        "",
        f"## Before margins: {len(old)} federations",
        "",
        OLD,
        "",
        *part(old),
    ]
    given.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
