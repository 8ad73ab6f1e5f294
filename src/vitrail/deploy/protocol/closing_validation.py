"""What a site is told about itself when a study ends, read as if somebody meant harm by it."""

from __future__ import annotations

import math
from typing import Any

from vitrail.deploy.protocol.message import no_such
from vitrail.quality.screening.result import CAUSES, LABEL, Finding
from vitrail.study.model import Study


def read_findings(study: Study, words: dict[str, Any], site: str = "") -> list[Finding]:
    """As the words of that message say them."""
    try:
        findings = [Finding(site, *fields) for fields in words["findings"]]
        features = {*study.features, LABEL}
        for finding in findings:
            well = finding.feature in features and finding.kind in CAUSES and isinstance(finding.wrong, bool)
            well = well and isinstance(finding.text, str) and finding.text.isprintable()
            well = well and isinstance(finding.strength, float) and math.isfinite(finding.strength)
            if not well or not is_plain_data(finding.numbers):
                raise ValueError
    except (KeyError, TypeError, ValueError):
        raise no_such("findings", words.get("findings")) from None
    return findings


def is_plain_data(numbers: Any) -> bool:
    """What a repair needs: numbers, short texts and lists of them under names; nothing that a terminal would obey."""
    if isinstance(numbers, dict):
        return all(isinstance(k, str) and k.isprintable() for k in numbers) and is_plain_data([*numbers.values()])
    if isinstance(numbers, list):
        return all(is_plain_data(v) for v in numbers)
    if isinstance(numbers, str):
        return numbers.isprintable()
    return numbers is None or (isinstance(numbers, int | float) and math.isfinite(numbers))
