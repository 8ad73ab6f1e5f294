"""What attackers got out of reports guarded as a study's are, in one sentence of its consent form.

The numbers are those of benchmarks/results/attacks.json; tests/deploy/test_words.py holds them against it.
"""

from __future__ import annotations

from vitrail.study import Protect

BATCH, PATIENTS = 16, 203  # rows of the batch that was rebuilt, and of the hospital that was read by crafted weights
KNOWN, SECRET = 16, 0  # rows of that batch rebuilt by who knows a site's draws, and by who does not
CRAFTED = {"plain": (53, 53), "masked": (16, 11), "rows": (0, 0)}  # of the hospital, in two trials, where nobody checks


def what_was_tried(protect: Protect) -> str:
    """For tables; the one who tried keeps to every agreed shape."""
    guard = "rows" if protect.rows else "masked" if protect.sum == "masked" else "plain"
    fewest, most = sorted(CRAFTED[guard])
    under = {"plain": "", "masked": " out of totals of four hospitals", "rows": " through noise like this"}[guard]
    read = f"{most}" if fewest == most else f"{fewest} to {most}"
    return (
        f"Tried on heart disease: from one report on {BATCH} patients who knew a site's draws rebuilt {KNOWN} of them, "
        f"who did not, {SECRET} (here draws stay at the site; one trial). By crafted weights, which this site looks "
        f"for, {read} of {PATIENTS} patients were read{under} in 40 rounds where no site looks."
    )
