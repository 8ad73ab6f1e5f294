"""Findings that come from elsewhere, read as if somebody meant harm by them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from vitrail.quality.screening.result import CAUSES, Finding

MOST_FINDINGS = 1_000_000


def sound_findings(findings: Iterable[Finding], features: Collection[str]) -> list[Finding]:
    """The same, or a ValueError: about columns of the study, of known causes, with numbers that are numbers."""
    out = list(findings)
    for finding in out:
        well = finding.feature in features and finding.kind in CAUSES and isinstance(finding.wrong, bool)
        well = well and isinstance(finding.text, str) and finding.text.isprintable()
        well = well and isinstance(finding.strength, float) and math.isfinite(finding.strength)
        if not well or not isinstance(finding.numbers, dict) or not is_plain_data(finding.numbers):
            raise ValueError
    return out


def is_plain_data(numbers: Any) -> bool:
    """What a repair needs: numbers, short texts and lists of them under names; nothing that a terminal would obey."""
    if isinstance(numbers, dict):
        return all(isinstance(k, str) and k.isprintable() for k in numbers) and is_plain_data([*numbers.values()])
    if isinstance(numbers, list):
        return all(is_plain_data(v) for v in numbers)
    if isinstance(numbers, str):
        return numbers.isprintable()
    return numbers is None or (isinstance(numbers, int | float) and math.isfinite(numbers))
