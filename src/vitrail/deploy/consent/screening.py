"""A screening in the words of the consent form."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.text import several
from vitrail.deploy.consent.secure_sum import SINGLE_SUM
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.engine.contract import WireEntry
from vitrail.quality.screening import budget
from vitrail.quality.screening.request_validation import FEWEST

PUBLISHED = "what is published of your columns"
HEADINGS = {  # when each leg is, as a heading and in a list
    "screen: sketch": ("Before the first round, to find out whose data does not fit: you agree to publish", PUBLISHED),
    "screen: counts": ("Then, of values that all sites are asked about alike", PUBLISHED),
    "screen: total": ("Then, under masks, so that only the sum over the sites can be read", "the products of columns"),
    "screen: ties": ("Then, when that sum is known", PUBLISHED),
}


def in_words(agreement: Agreement, stage: str, rows: int | None) -> list[str]:
    """What is said of a leg beside its tensors."""
    first, _, total, _ = HEADINGS
    if stage == total:
        return [SINGLE_SUM]
    return how_many(agreement, rows) if stage == first else []


def how_many(agreement: Agreement, rows: int | None) -> list[str]:
    """How many numbers a site publishes of a column, against how many rows it has, or patients where the study names
    them."""
    word = agreement.study.unit_word
    one = ["of a patient with several rows, one row is used here"] if agreement.study.person_column else []
    if rows is None:
        never = f"of a column never more than one number for every two {word}s that you have; the rest is left empty"
        return [*one, never]
    each = budget(agreement.study, rows)
    most = max(each.values())
    if not most:
        return [f"you have {several(rows, word)}, which is too few: nothing but how many they are is published"]
    widest = next(name for name, numbers in each.items() if numbers == most)
    few = f"of a column at most {several(most, 'number')} ({widest}), against the {several(rows, word)} that you have"
    return [*one, f"{few}, and never more than one for every two {word}s; the rest is left empty"]


def who_sees(agreement: Agreement, lines: Sequence[WireEntry]) -> list[str]:
    if not any(line.seen == "masked" and line.stage in HEADINGS for line in lines):
        return []
    return [
        "Of the products of columns nobody can read this site's own: they leave under masks, and only what "
        f"{agreement.fewest} sites or more (more than two thirds of {agreement.sites}) add up to can be opened, once, "
        "for one list of sites that all of them signed, who were all asked about the same columns. The keys of the "
        "masks are drawn for this one sum and signed by the sites that are listed above; nobody else is believed.",
        "Every site is sent, at the end, what all sites published together, pooled.",
    ]


def what_remains(lines: Sequence[WireEntry]) -> list[str]:
    """What could still be learned."""
    if not any(line.stage in HEADINGS for line in lines):
        return []
    return [
        "Counts, quantiles and correlations that are published describe this site's rows column by column. Who knows "
        "all of a person's values can guess better than by chance whether that person is among few rows. A coordinator "
        f"that asks about values of its own choosing is not told of fewer than {FEWEST} rows with one value, and is "
        "answered once.",
        "The digest of all rows is keyed by the run. It shows whether two sites hold the same rows. Somebody who has a "
        "whole table can find out that it is this site's; of a single row it tells nothing to those who lack others.",
    ]


def comes_in(lines: Sequence[WireEntry]) -> list[str]:
    told = "at the end, in words: what was found about this site, and what all sites published together"
    return [told] if any(line.stage in HEADINGS for line in lines) else []
