"""The participants in the words of the consent form: their keys, and who would have to collude to read a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vitrail.deploy.consent.secure_sum import grouped_at
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.secure_sum.shared import grouped
from vitrail.deploy.two_server import shared as two_server
from vitrail.privacy.secure_sum.dropout_tolerant import groups, needed
from vitrail.privacy.secure_sum.fixed_point import fewest_of


def about_keys(agreement: Agreement) -> str:
    if not agreement.roster:
        return "Their keys are known, and named here, when all who were invited are approved."
    return (
        "Their keys, as the coordinator gave them. Call each, at a number that you have from elsewhere, and compare by "
        "phone: each reads out its own fingerprint, and all the same hash of this contract (below). Without the call "
        "the coordinator could have given you keys of its own."
    )


def accomplices(sites: int, least: int) -> int:
    """Sites that would have to work with the coordinator so that it reads another one's report, where so many add up
    theirs: all others of the shortest list; or so many holders of shares who tell it both kinds of them, while the
    coordinator tells the others different stories of who reported (privacy/secure_sum/dropout_tolerant.py).

    >>> [accomplices(n, 3) for n in (3, 4, 5, 6, 10, 12)]
    [2, 2, 3, 4, 4, 6]
    """
    fewest = fewest_of(sites, least)
    return min([fewest - 1, *_two_stories(sites, fewest)])


def _two_stories(sites: int, fewest: int) -> Iterator[int]:
    """For each length of a list from which one site can be said to be silent."""
    for length in range(fewest + 1, sites + 1):
        names = [str(i) for i in range(length)]
        group = next(iter(groups("", names).values()))
        yield max(1, 2 * needed(group, names, fewest) - len(group))


def who_must_collude(agreement: Agreement, site: str, sites: Sequence[str]) -> list[str]:
    """In one line."""
    protect = agreement.study.protect
    if two_server.study_has(agreement):
        return [
            f"TO READ THIS SITE'S REPORT IT TAKES: the coordinator and {protect.second}; or one of the two and the "
            "site that deals in that round, which is drawn by lot."
        ]
    if not agreement.masks:
        return []
    where = grouped_at(agreement)
    mine = next((g for g in grouped(agreement, where, sites).values() if site in g), []) if where else []
    count = len(mine) or agreement.sites
    number, whom = accomplices(count, protect.least), "of this site's group" if mine else "sites"
    return [
        f"TO READ THIS SITE'S REPORT IT TAKES: the coordinator and {number} of the {count - 1} other {whom}, working "
        "together."
    ]


def participants(agreement: Agreement, site: str) -> list[str]:
    """Names and fingerprints, to be compared by phone."""
    second = agreement.study.protect.second
    beside = {site: " (this site)", second: " (the second server)"}
    return [f"{name}{beside.get(name, '')}: {mark}" for name, mark in agreement.roster.items()]
