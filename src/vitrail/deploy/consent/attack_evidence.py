"""What attackers got out of reports guarded as a study's are, in one sentence of its consent form.

The numbers are those of benchmarks/attacks/results/attacks.json; tests/deploy/consent/test_form.py holds them against
it.
"""

from __future__ import annotations

from vitrail.study.model import Protect

BATCH, PATIENTS = 16, 203  # rows of the batch that was rebuilt, and of the hospital that was read by crafted weights
# rows of that batch, in five draws of patients, by who does not know what the site drew: with dropout, and without (of
# noise: by who knows all draws but the noise)
REBUILT = {
    "plain": ((0, 0, 0, 2, 10), (16, 16, 16, 0, 5)),
    "masked": ((0, 0, 0, 0, 0), (1, 1, 1, 1, 0)),
    "rows": ((0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
}
# of the hospital, in five trials, where nobody checks
CRAFTED = {"plain": (53, 53, 52, 52, 58), "masked": (16, 11, 18, 25, 25), "rows": (0, 0, 0, 0, 0)}


def what_was_tried(protect: Protect, dropout: bool) -> str:
    """For tables; the one who tried keeps to every agreed shape. `dropout`: whether the network has any."""
    guard = "rows" if protect.rows else "masked" if protect.sum == "masked" else "plain"
    out_of = {
        "plain": f"one report on {BATCH} patients",
        "masked": f"the total of three sites' reports on {BATCH} patients each",
        "rows": f"one report on {BATCH} patients, through noise like this,",
    }[guard]
    found = REBUILT[guard][0 if dropout else 1]
    drawn = "somebody who does not know this site's draws" if dropout else "somebody, without dropout,"
    under = {"plain": "", "masked": " out of totals of four hospitals", "rows": " through noise like this"}[guard]
    return (
        f"Tried on heart disease: out of {out_of} {drawn} rebuilt {_span(found)} of a site's {BATCH} "
        f"({len(found)} trials). By crafted weights, which this site looks for, {_span(CRAFTED[guard])} of {PATIENTS} "
        f"patients were read{under} in 40 rounds where no site looks."
    )


def _span(counts: tuple[int, ...]) -> str:
    return str(max(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
