"""The share of a site in a round between machines: what both ends know of it.

prepare   each site signs how many rows it trains on, with the key that it enrolled with
round     every question names the sites of the round; with it what they signed, as far as this site does not have it

What a site works out from that is its own business: the coordinator hears "refused". A coordinator cannot state other
numbers of rows than those that were signed, by keys that this site accepted. It can name sites that then stay away;
under masks the list is the one that all sites of the sum sign. Whether a site's number of rows is true, nobody checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitrail.runs.protection.shares import weighs_rows

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

SHARE, LISTED, ROWS, WHY = "share", "listed", "rows", "why"
STATEMENT: dict[str, Any] = {"signature": str, "certificate": str}  # with the answer to `prepare`


def states_rows(agreed: Agreement) -> bool:
    """Whether sites sign their number of rows."""
    return agreed.study.share is not None and weighs_rows(agreed.method)


def rows_text(agreed: Agreement, run: str, site: str, rows: int) -> bytes:
    """What a site signs."""
    return "\0".join(("vitrail rows 1", agreed.hash, run, site, str(rows))).encode()
