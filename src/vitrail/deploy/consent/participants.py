"""Who would have to work together to read one site's own report: counted for the form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitrail.deploy.identity.participants import COORDINATOR_KNOWS
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.secure_sum.shared import grouped
from vitrail.privacy.secure_sum.dropout_tolerant import groups, needed
from vitrail.privacy.secure_sum.fixed_point import fewest_of


class PseudonymTerms(NamedTuple):
    """Participants under a pseudonym, this site apart."""

    resolved: tuple[str, ...]  # that the coordinator can name
    unresolved: tuple[str, ...]  # that nobody can name
    of: int  # participants in all
    own: str  # who can say whose this site's name is; "" where it is its own name
    named: int  # sites with a name of their own that a coordinator would still need, if all others were its inventions

    @property
    def others(self) -> int:
        return len(self.resolved) + len(self.unresolved)


def pseudonym_terms(agreement: Agreement, site: str, accomplices: int) -> PseudonymTerms | None:
    """`accomplices`: how many sites must help the coordinator to read a report of this one; 0 where none must."""
    available = agreement.roster.pseudonyms
    if not available:
        return None
    resolved = tuple(n for n, by in available.items() if n != site and by == COORDINATOR_KNOWS)
    unresolved = tuple(n for n in available if n != site and n not in resolved)
    named = max(0, accomplices - len(resolved) - len(unresolved))
    return PseudonymTerms(resolved, unresolved, len(agreement.roster), available.get(site, ""), named)


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


def group_of(agreement: Agreement, site: str, sites: Sequence[str]) -> list[str]:
    """The sites whose reports are added up with this one's, itself among them; none where that is everybody."""
    places = (
        (s, 0, i)
        for s, reported in enumerate(agreement.contracts)
        for i, c in enumerate(reported)
        if c.read == "groups"
    )
    where = next(places, None)
    if where is None:
        return []
    return next((group for group in grouped(agreement, where, sites).values() if site in group), [])
