"""Masked reports in the words of the consent form."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.text import several
from vitrail.deploy.consent.budget import noise_text
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.secure_sum.presence import REPEATS, most_changes
from vitrail.deploy.secure_sum.shared import grouped
from vitrail.deploy.two_server import shared as two_server
from vitrail.engine.contract import MASKED
from vitrail.privacy.secure_sum.fixed_point import LIMIT
from vitrail.privacy.two_server.protocol import TESTS

SINGLE_SUM = (
    "in words: a key drawn for this sum and signed by this site, sealed shares of what hides its numbers, the shares "
    "that it holds of others' (of who added numbers, of what hides these; of who fell silent, of its key), and a "
    "signature under the list of who is in the sum; and once in a run this site's keys for sealed shares and for "
    "signatures, signed, and its certificate"
)


def masked_report_texts(agreement: Agreement, stage: str) -> list[str]:
    """What leaves with masked reports, in words."""
    if stage == "standardise" and agreement.study.protect.sum == "masked":
        return [SINGLE_SUM]
    contracts = [c for one in agreement.contracts for c in one]
    if not any(c.stage == stage and c.crosses is not None for c in contracts):
        return []
    if any(c.stage == stage and c.read == two_server.READ for c in contracts):
        return [
            "in words, in every round: sealed for the second server, what its half of this site's change is drawn "
            "from; "
            "and where the lot falls on this site, numbers made of chance, by which both servers find distances"
        ]
    if not any(c.stage == stage and c.read in MASKED for c in contracts):
        return []
    told = (
        "in words, in every round: a key drawn for it and signed by this site, sealed shares of what hides this site's "
        "report, and the shares that it holds of others' (of who reported, of what it added itself; of who fell "
        "silent, of its key)"
    )
    signed = "in words, with every report: a signature under the list of who is in its sum"
    keys = "once in a run: this site's keys for sealed shares and for signatures, signed, and its certificate"
    return [told, signed, keys]


def who_reads(agreement: Agreement) -> list[str]:
    if not agreement.masks:
        return []
    stages = [t.stage.title or t.stage.name for t in agreement.stages]
    pairs = zip(stages, agreement.contracts, strict=True)
    named = ", ".join(dict.fromkeys(name for name, told in pairs if any(c.read in MASKED for c in told)))
    return [
        f"Nobody can read this site's own report ({named}): it leaves under masks, and only what "
        f"{_fewest(agreement)} report together can be opened, once in a round and for one list of sites. Every site "
        "signs the list when it reports, and helps to open the sum only if all who reported signed the very same one. "
        "Asked for another list, or the same round otherwise, this site refuses. Where every site is told the same, "
        "masks of sites that were told different things do not cancel.",
        "The keys of the masks are drawn for every round and signed by the sites whose names and keys are listed "
        "above. Nobody else is believed: a certificate that the coordinator issues in a site's name, or an invented "
        "site, is refused.",
        f"The list of who is in the sums may change at most {most_changes(agreement)} times in a run (a site that "
        f"falls silent and one that comes back are a change each), and at most {REPEATS} times without the model "
        "having moved; then this site opens no other list. Every change is shown here and stands in the outbox.",
        f"A number beyond {LIMIT:g} is not sent: this site then stops, and says which.",
    ]


def _fewest(agreement: Agreement) -> str:
    if any(c.read == "groups" for told in agreement.contracts for c in told):
        return f"more than two thirds of a group, and never fewer than {agreement.study.protect.least} sites,"
    return f"{several(agreement.fewest, 'site')} or more (more than two thirds of {agreement.sites})"


def grouped_at(agreement: Agreement) -> tuple[int, int, int] | None:
    """The first exchange whose reports are added up in groups."""
    places = ((s, 0, i) for s, told in enumerate(agreement.contracts) for i, c in enumerate(told) if c.read == "groups")
    return next(places, None)


def in_two_halves(agreement: Agreement) -> list[str]:
    """Who could read a report that leaves in two halves."""
    if not two_server.study_has(agreement):
        return []
    said = agreement.study.protect
    return [
        f"Reports of training leave in two halves, each of which alone is noise: one to the coordinator, one sealed "
        f"for the second server, {said.second}. Together they find how far reports lie from each other and "
        f"{TESTS} sums of each report with signs drawn by lot, and open the total of those that lie nearest to each "
        f"other, never of fewer than {said.least}; how much a report counts is read by the coordinator.",
        f"If the coordinator and {said.second} put their halves together, every report is read, and nothing here "
        "prevents it; so does one of them with the site that was drawn to deal in that round. A coordinator that "
        "changes its own half learns some sums of its choice about a report in each round, and the second cannot "
        "notice. Halves are signed by the sites, so that it can invent none.",
        f"The key of {said.second} is listed above: compare its fingerprint by phone. Of fewer than "
        f"{several(agreement.fewest, 'report')} (more than two thirds of {agreement.sites}) it opens nothing.",
    ]


def in_a_group(agreement: Agreement, site: str, sites: Sequence[str]) -> list[str]:
    """With whom this site's reports are added up, where that is not everybody."""
    where = grouped_at(agreement)
    if where is None or site not in sites:
        return []
    mine = next(group for group in grouped(agreement, where, sites).values() if site in group)
    others = ", ".join(n for n in mine if n != site)
    return [
        f"Reports of training are added up in groups, which stay the same. This site's is with {others}: the "
        "coordinator reads what these report together in every round, and no site's own report. Of the groups' means "
        "it takes a centre that one group with a liar in it can hardly move; its page may say of a whole group that "
        "it lay far off, and not of whom in it.",
        "Groups follow from the study's seed and the sites' names, and the coordinator wrote both: one that works "
        "with all other sites of this group reads this site's reports. The smaller a group, the more its total tells "
        "about each in it.",
    ]


def noise_and_masks(agreement: Agreement) -> str:
    """The end of what is said about reports: what keeps somebody from reading them."""
    noise = noise_text(agreement)
    if two_server.study_has(agreement):
        return f"{noise}. Neither server can read a single report, but both the total of those that are chosen."
    if not agreement.masks:
        return f"{noise}, and the coordinator is not kept from reading a single report."
    return (
        f"{noise}. The coordinator cannot read a single report, but the sum and the models made of it; a site that "
        "comes or goes between two rounds can be seen in the difference of their sums, as far as rounds are alike."
    )
