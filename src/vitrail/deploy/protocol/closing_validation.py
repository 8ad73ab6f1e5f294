"""What a site is told about itself when a study ends, read as if somebody meant harm by it."""

from __future__ import annotations

from typing import Any

from vitrail.deploy.protocol.message import no_such
from vitrail.quality.screening.finding_validation import sound_findings
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.study.model import Study


def read_findings(study: Study, words: dict[str, Any], site: str = "") -> list[Finding]:
    """As the words of that message say them."""
    try:
        return sound_findings((Finding(site, *fields) for fields in words["findings"]), {*study.features, LABEL})
    except (KeyError, TypeError, ValueError):
        raise no_such("findings", words.get("findings")) from None
