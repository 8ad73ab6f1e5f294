"""The coordinator's side of a screening: what it asks, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.schema import TableSchema
from vitrail.quality.screening.answer_validation import require, require_total
from vitrail.quality.screening.decision import judge
from vitrail.quality.screening.diagnosis.effect import with_effects
from vitrail.quality.screening.pooled_reference import evidence_of, pool
from vitrail.quality.screening.result import Screening
from vitrail.quality.screening.schema import CUTS, RELATED, VALUES, Numbers, Said, ScreeningSchema, shares
from vitrail.quality.screening.site import ScreeningSite, sizes_of
from vitrail.quality.screening.site_summaries import SiteSummaries
from vitrail.stats.tests import median_known

LEAST = 3  # sites; two that differ cannot tell who is wrong
TIED = 0.15  # columns that go together less are not compared


class ScreeningCoordinator:
    def __init__(self, table: TableSchema, alpha: float = 0.05) -> None:
        self.layout, self.alpha = ScreeningSchema(table), alpha
        self.said: dict[str, dict[str, Said]] = {}
        self.asked: dict[str, Said] = {}

    def check(self, leg: str, site: str, answer: Said) -> None:
        """Refuse what cannot be, in words that name the site."""
        require(self.layout, leg, site, answer, self.said.get("sketch", {}).get(site), self.asked.get(leg))

    def check_total(self, total: Said, sites: Sequence[str]) -> None:
        """Refuse a total that these sites' rows cannot add up to; whose part spoils it, nobody sees."""
        require_total(total, sum(float(self.said["sketch"][s]["rows"][0]) for s in sites))

    def leave_out(self, site: str) -> None:
        """It is not judged, whatever it has said; the others are."""
        for answers in self.said.values():
            answers.pop(site, None)

    @property
    def sites(self) -> list[str]:
        return list(self.said["sketch"])

    @property
    def publishing(self) -> list[str]:
        return [s for s, answer in self.said["sketch"].items() if np.isfinite(answer["known"]).any()]

    def hear_sketch(self, answers: Mapping[str, Said]) -> Said:
        """-> where rows are to be parted, which values are to be counted, what the outcome is predicted from."""
        self._keep("sketch", answers)
        here = [answers[s] for s in self.publishing]
        at = self.layout
        cuts = np.full((len(at.numbers), len(CUTS) + 2), np.nan)
        values = np.full((len(at.numbers), VALUES), np.nan)
        if here and len(at.numbers):
            quantiles = np.stack([s["quantiles"] for s in here])
            cuts = choose_cuts(quantiles)
            held = np.stack([s["held"] for s in here])
            observed = np.stack([s["known"] for s in here])[:, at.column[at.numbers]]
            values = choose_values(held, observed)
        tied = np.zeros(len(at.inputs))
        if len(at.inputs) > at.wide and here:
            tied = self._strength(here)
        chosen = np.sort(np.argsort(-tied, kind="stable")[: at.wide]).astype(np.float64)
        self.asked["counts"] = {"cuts": cuts, "values": values, "chosen": chosen}
        return self.asked["counts"]

    def hear_counts(self, answers: Mapping[str, Said], total: Said | None) -> Said:
        """-> the products of all columns over all sites, and which columns go together. `total`: None where it could
        not be opened, between machines; what rests on it is not judged then."""
        self._keep("counts", answers)
        at = self.layout
        shape = (at.wide + len(at.outcome),) * 2
        products = np.full(shape, np.nan) if total is None else np.asarray(total["products"], np.float64)
        if total is not None and (products.shape != shape or not np.isfinite(products).all()):
            what = "expected finite numbers of the agreed shape; one of the sites sent something else."
            raise VitrailError("the total of the screening cannot be used", [Problem("screening, products", what)])
        d = at.wide
        size = sizes_of(products)
        r = np.abs(products / size[:, None] / size)[:d, :d]
        chosen = at.inputs[self.asked["counts"]["chosen"].astype(np.int64)]
        r[at.column[chosen][:, None] == at.column[chosen]] = 0.0
        order = np.argsort(-r, axis=1, kind="stable")[:, :RELATED]
        partner = np.where(np.take_along_axis(r, order, 1) >= TIED, chosen[order], np.nan) if d else np.zeros((0, 0))
        related = np.full((len(at.inputs), RELATED), np.nan)
        if d:
            related[self.asked["counts"]["chosen"].astype(np.int64), : partner.shape[1]] = partner
        self.asked["ties"] = {"products": products, "chosen": self.asked["counts"]["chosen"], "related": related}
        return self.asked["ties"]

    def hear_ties(self, answers: Mapping[str, Said]) -> None:
        self._keep("ties", answers)

    def judge(self) -> Screening:
        here = self.publishing
        why = {s: "" if s in here else "too few rows to publish anything" for s in self.sites}
        sites = pd.DataFrame(
            {
                "site": self.sites,
                "rows": [int(self.said["sketch"][s]["rows"][0]) for s in self.sites],
                "numbers": [self._most(s) for s in self.sites],
                "same rows": [self._same_rows(s) for s in self.sites],
                "digest": [digest_text(self.said["sketch"][s]["digest"]) for s in self.sites],
                "judged": [s in here and len(here) >= LEAST for s in self.sites],
                "why not": [
                    why[s] or ("" if len(here) >= LEAST else f"only {len(here)} sites publish, and it takes {LEAST}")
                    for s in self.sites
                ],
            }
        )
        if len(here) < LEAST:
            cells = pd.DataFrame({"site": [], "feature": [], "strength": [], "wrong": [], "kind": []})
            return Screening([], cells, sites, self.alpha, {})
        published = SiteSummaries(self.layout, here, self.said, self.asked)
        findings, cells = judge(published, self.alpha)
        findings = with_effects(published, findings)
        return Screening(findings, cells, sites, self.alpha, pool(published), evidence_of(published, findings))

    def _same_rows(self, site: str) -> str:
        """The first site with the same rows as this one; empty where no other has them."""
        own = self.said["sketch"][site]["digest"]
        group = [s for s in self.sites if np.array_equal(self.said["sketch"][s]["digest"], own)]
        return group[0] if len(group) > 1 else ""

    def _most(self, site: str) -> int:
        return max(s.numbers for s in shares(self.layout, float(self.said["sketch"][site]["rows"][0])))

    def _keep(self, leg: str, answers: Mapping[str, Said]) -> None:
        for site, arrays in answers.items():
            self.check(leg, site, arrays)
        self.said[leg] = {s: {k: np.asarray(v, np.float64) for k, v in a.items()} for s, a in answers.items()}

    def _strength(self, here: list[Said]) -> Numbers:
        """[input]: how strongly it goes with the outcome, over all sites."""
        at = self.layout
        both = ~at.is_number[at.inputs][:, None] & ~at.is_number[at.outcome]
        r = np.where(both, 0.0, np.stack([s["outcome"][..., 0] for s in here]))
        return np.asarray(np.nan_to_num(np.abs(np.nanmean(r, 0))).max(1))


def digest_text(digest: Numbers) -> str:
    """Of all rows, by which a site finds what was said about it; empty of a site that publishes nothing."""
    return "".join(f"{int(x):012x}" for x in digest) if np.isfinite(digest).all() else ""


def choose_cuts(quantiles: Numbers) -> Numbers:
    """[number, cut]: the sites' median quantiles, and fences outside of nearly all sites' ranges; NaN: no such cut.

    One site that is far off moves neither.
    """
    q = quantiles
    inner = median_known(q[:, :, CUTS])
    # ends: 5 % and 95 %, or quartiles drawn on where a site says no more
    low = np.where(np.isnan(q[:, :, 0]), 2.5 * q[:, :, 4] - 1.5 * q[:, :, 9], q[:, :, 0])
    high = np.where(np.isnan(q[:, :, -1]), 2.5 * q[:, :, 14] - 1.5 * q[:, :, 9], q[:, :, -1])
    low, high = _second(low), -_second(-high)
    inner[:, 1:] = np.where(np.diff(inner, axis=1) > 0, inner[:, 1:], np.nan)
    wide = high - low
    low = np.fmin(low - 0.25 * wide, np.nanmin(inner, 1, initial=np.inf))
    high = np.fmax(high + 0.25 * wide, np.nanmax(inner, 1, initial=-np.inf))
    return np.column_stack([np.where(np.isfinite(low), low, np.nan), inner, np.where(np.isfinite(high), high, np.nan)])


def _second(low: Numbers) -> Numbers:
    """[number]: the second smallest over sites (of three: the middle one)."""
    low = np.sort(low, axis=0)  # NaN last
    finite = np.isfinite(low).sum(0)
    second = np.take_along_axis(low, np.minimum(1, finite - 1)[None].clip(min=0), 0)[0]
    return np.asarray(np.where(finite > 1, second, low[0]))


def choose_values(held: Numbers, observed: Numbers) -> Numbers:
    """[number, VALUES]: values that one site holds more often than most; NaN: no more such."""
    n = observed.shape[1]
    out = np.full((n, VALUES), np.nan)
    with np.errstate(all="ignore"):
        share = held[..., 1] / observed[:, :, None]  # [site, number, 3]
    for i in range(n):
        value, part = held[:, i, :, 0], share[:, i]
        seen = np.unique(value[np.isfinite(value)])
        if not len(seen):
            continue
        at = [(np.where(value == v, part, 0.0)).max(1) for v in seen]  # [value][site]
        gap = np.array([x.max() - np.median(x) for x in at])
        best = np.argsort(-gap, kind="stable")[:VALUES]
        out[i, : len(best)] = seen[best]
    return out


def screen(rows: Mapping[str, pd.DataFrame], table: TableSchema, alpha: float = 0.05) -> Screening:
    """Both sides in one process; `rows` of each site as `data.readers.tables.clean` gives them."""
    desk, seats = (
        ScreeningCoordinator(table, alpha),
        {name: ScreeningSite(frame, table) for name, frame in rows.items()},
    )
    asked = desk.hear_sketch({name: seat.sketch() for name, seat in seats.items()})
    answers = {name: seat.counts(asked) for name, seat in seats.items()}
    products = sum(total["products"] for _, total in answers.values())
    total = {"products": np.asarray(products)} if answers else None  # where nobody publishes
    asked = desk.hear_counts({name: own for name, (own, _) in answers.items()}, total)
    desk.hear_ties({name: seat.ties(asked) for name, seat in seats.items()})
    return desk.judge()
