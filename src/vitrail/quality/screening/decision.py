"""From tests to accused cells: the site that is farthest off first, and there the cell that explains most."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import ndtri

from vitrail.data.missing_codes import CODES
from vitrail.quality.screening.diagnosis.causes import explain, say_absent
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis
from vitrail.quality.screening.diagnosis.confirmation import as_unit, is_clear
from vitrail.quality.screening.diagnosis.differences import differs
from vitrail.quality.screening.diagnosis.location_scale import keeping
from vitrail.quality.screening.diagnosis.plain_evidence import settle_cell, suspects
from vitrail.quality.screening.result import Finding
from vitrail.quality.screening.row_evidence.tests import without_outcome
from vitrail.quality.screening.schema import Flags
from vitrail.quality.screening.site_summaries import (
    BELOW,
    BEYOND,
    LOCATION,
    MISSING,
    OUTCOME,
    PREDICTED,
    RATIO,
    SIZE,
    VALUE,
    SiteSummaries,
)
from vitrail.quality.screening.statistics import SiteTests

FURTHER = 1e-3  # a further cell at the same site must be so much less likely
MOST = 4  # cells at one site
ALONE, FARTHER = 1.3, 1.5  # without a clear cause, times the bar and times what any other site shows
BY_FAR = 2.0  # times the bar: farther than hospitals differ in such a quantity (site_spread.py)
FEW_SITES, FEW_ROWS, CAREFUL = 4, 30, 1.5  # with fewer sites or rows so many times that
IN_NUMBERS = (BELOW, BEYOND, LOCATION, SIZE, VALUE)
HARDLY = 0.05  # of the rows have a value: the column is not measured there
COUNTED = ("constant", "unit", "unit in part", "offset", "code", "clipped", "rounded", "swapped")  # counts show it
OFF = 2.5  # z from which a count speaks against a column
NAMED = ("swapped", "unit in part", "sign", "unit", "offset")  # causes that explain why a number goes against the study
FREE = 4.0  # of a squared deviate: what any test shows by chance


def judge(published: SiteSummaries, alpha: float) -> tuple[list[Finding], pd.DataFrame]:
    weighed = SiteTests(published, alpha)
    absent = find_absent(weighed)
    wrong, clear = find_settled(weighed), [] if weighed.alike else find_confirmed(weighed)
    wrong += clear
    done: set[int] = set()
    while len(done) < len(published.sites):
        over = weighed.beyond / weighed.bar
        over[list(done)] = 0.0
        site = int(over.max(1).argmax())
        if over[site].max() <= 1:
            break
        done.add(site)
        # where sites differ and no cause is clear, one cell at most may be held to be wrong: far beyond all other sites
        rest = float(np.delete(over.max(1), site).max(initial=0.0)) if len(done) == 1 and not clear else float("inf")
        wrong += flag_cells(weighed, site, rest)
    wrong.sort(key=lambda f: -f.strength)
    wrong += absent
    maybe = differing(weighed, {(f.site, f.feature) for f in wrong})
    findings = [f for f in wrong if f.wrong] + [f for f in wrong if not f.wrong] + maybe
    return findings, all_cells(weighed, findings)


def find_absent(weighed: SiteTests) -> list[Finding]:
    """Columns that a site does not measure, or that it alone measures. Nothing else is said of these cells."""
    p = weighed.published
    out = []
    with np.errstate(all="ignore"):
        measured = np.nan_to_num(p.known / p.rows[:, None])[:, :-1]  # [site, input]
    for column in np.flatnonzero((measured <= HARDLY).any(0)):
        some = np.flatnonzero(measured[:, column] > HARDLY)
        absent = np.flatnonzero(measured[:, column] <= HARDLY)
        kind, where = ("only here", some) if len(some) == 1 else ("not here", absent if len(some) else some)
        for site in where:
            diagnosis = say_absent(kind, measured[site, column])
            out.append(_finding(weighed, int(site), int(column), diagnosis, 0.0))
        quiet = (weighed.first == column) & (weighed.family == MISSING)
        weighed.set_aside(absent, int(column), quiet, len(some))
    return out


def find_settled(weighed: SiteTests) -> list[Finding]:
    """What goes against the study, or what no patients could make so: set aside before anything else is weighed."""
    out = []
    for site, column in suspects(weighed.published):
        if weighed.accused[site, column]:
            continue
        cell = Cell(weighed, int(site), int(column))
        if diagnosis := settle_cell(cell):
            if diagnosis.kind in ("other", "unit", "offset"):  # what other columns tell may name the cause
                named = explain(cell)
                diagnosis = as_unit(cell, named if named.kind in NAMED else diagnosis)
            strength = max(1.0, float((weighed.z[site] / weighed.bar)[cell.own].max(initial=0.0)))
            out.append(_finding(weighed, int(site), int(column), diagnosis, strength))
    for finding in out:
        site = weighed.published.sites.index(finding.site)
        column = weighed.published.layout.columns.index(finding.feature)
        weighed.flag(site, column)
        if column != weighed.outcome:
            weighed.predict_without(site, [*weighed.without.get(site, []), column])
    return out


def find_confirmed(weighed: SiteTests) -> list[Finding]:
    """Where sites differ: cells beyond chance where a cause is seen here and nowhere else; the loudest first. What
    counts show cannot come from a wrong outcome and goes first; an outcome that a column may explain comes last."""
    cells = suspects_of(weighed, extreme_cells(weighed))
    columns = [c for c in cells if c[2] != weighed.outcome]
    out = confirmed_causes(weighed, columns, COUNTED)
    outcomes = [c for c in cells if c[2] == weighed.outcome]
    first = [c for c in outcomes if explains_itself(weighed, c[1])]
    for _, site, _ in outcomes:
        weighed.doubted[site] = site in {c[1] for c in first}
    out += confirmed_causes(weighed, first, ())
    out += confirmed_causes(weighed, columns, ())
    accused = {f.site for f in out}
    last = [c for c in outcomes if c not in first and weighed.published.sites[c[1]] not in accused]
    return out + confirmed_causes(weighed, [c for c in last if explains_itself(weighed, c[1])], ())


def confirmed_causes(weighed: SiteTests, cells: list[tuple[float, int, int]], kinds: tuple[str, ...]) -> list[Finding]:
    """Of these cells, those with a clear cause; `kinds`: only such causes."""
    out: list[Finding] = []
    for strength, site, column in cells:
        over = np.where(weighed.tests_of(site, column), weighed.z[site] / weighed.bar, 0.0)
        if weighed.accused[site, column] or over.max() <= 1:  # it was for a cell that has been accused since
            continue
        cell = Cell(weighed, site, column)
        diagnosis = explain(cell)
        if diagnosis.wrong and (not kinds or diagnosis.kind in kinds) and is_clear(cell, diagnosis):
            out.append(_finding(weighed, site, column, diagnosis, strength))
            weighed.flag(site, column)
            if column != weighed.outcome:
                weighed.predict_without(site, [*weighed.without.get(site, []), column])
    return out


def explains_itself(weighed: SiteTests, site: int) -> bool:
    """Whether the outcome is likelier off than the column whose tie with it is off the most."""
    live = ~np.isin(weighed.first, np.flatnonzero(weighed.accused[site]))
    first = strongest_tie(weighed, site, live)
    return first >= 0 and outcome_or(weighed, site, first, live) > 0


def suspects_of(weighed: SiteTests, cells: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Those that a clear cause could be found for at all; wide tables have thousands that cannot."""
    p, at = weighed.published, weighed.published.layout
    shape = (len(p.sites), len(at.columns))
    may = np.ones(shape, bool)
    number = at.column[at.numbers]
    may[:, number] = False
    effect = np.nan_to_num(weighed.effect)
    for family in (LOCATION, SIZE):
        x = effect[:, weighed.family == family]
        top = np.sort(x, axis=0)[-min(2, len(x))]  # the second largest
        may[:, number] |= (x > 0.7) & (x > 1.5 * top)
    for family, least in ((VALUE, 0.04), (BEYOND, 0.05)):
        which = np.flatnonzero(weighed.family == family)
        gap = np.nan_to_num(weighed.mine[:, which] - weighed.theirs[:, which]) > least
        np.logical_or.at(may.T, weighed.first[which], gap.T)
    may[:, number] |= (np.isin(p.held[..., 0], CODES) & np.isfinite(p.held[..., 0])).any(2)
    for with_outcome in (False, True):
        may |= np.nan_to_num(keeping(p, weighed.accused, with_outcome)[0], nan=1.0) < 0.6
    may[:, -1] = True
    return [c for c in cells if may[c[1], c[2]]]


def extreme_cells(weighed: SiteTests) -> list[tuple[float, int, int]]:
    """(strength, site, column) of all cells beyond chance, the strongest first."""
    over = (weighed.z / weighed.bar).T
    best = np.zeros((weighed.outcome + 1, over.shape[1]))
    for columns in (weighed.first, weighed.second):
        np.maximum.at(best, columns[columns >= 0], over[columns >= 0])
    cells = [(float(best[c, s]), int(s), int(c)) for c, s in np.argwhere(best > 1)]
    # a flipped outcome turns the ties of all columns: it is looked at before them
    return sorted(cells, key=lambda cell: (cell[2] != weighed.outcome, -cell[0]))


def flag_cells(weighed: SiteTests, site: int, rest: float) -> list[Finding]:
    columns = [int(c) for c in np.flatnonzero(weighed.accused[site])]
    out: list[Finding] = []
    while len(out) < MOST:
        live = ~np.isin(weighed.first, columns) & ~np.isin(weighed.second, columns)
        over = np.where(live, weighed.beyond[site] / weighed.bar, 0.0)
        best = int(over.argmax())
        if over[best] <= 1:
            break
        if columns and weighed.beyond[site, best] <= -ndtri(weighed.level[best] * FURTHER / 2):
            break
        gains = attribute(weighed, site, live)
        loud = live & (over > 1)
        suspects = set(weighed.first[loud]) | set(weighed.second[loud]) - {-1}
        gains = {c: g for c, g in gains.items() if c in suspects}
        if not gains:
            break
        far = live & (over > by_far(weighed, site)) & weighed.marginal & np.isin(weighed.family, IN_NUMBERS)
        column = loudest_count(weighed, gains, live & (over > 1) if weighed.alike else far)
        if column < 0:
            column = choose_end(weighed, site, max(gains, key=lambda c: gains[c]), columns, live)
        cell = Cell(weighed, site, column)
        diagnosis = as_unit(cell, explain(cell))
        strength = float(over[best])
        habit = column in weighed.published.layout.by_habit  # differs among sites that are else alike
        sure = (weighed.alike and not habit) or is_clear(cell, diagnosis)
        # where sites differ, outcomes may be others as well
        mix = habit or (column == weighed.outcome and diagnosis.kind == "other")
        beyond_any = not habit and bool(far[weighed.first == column].any())
        if not sure and not beyond_any and (out or mix or strength < max(ALONE, FARTHER * rest)):
            diagnosis = differs(weighed, site, column, np.flatnonzero(weighed.tests_of(site, column)))
        out.append(_finding(weighed, site, column, diagnosis, strength))
        columns.append(column)
        if column == weighed.outcome and not weighed.alike:
            break
        weighed.flag(site, column)
        if column != weighed.outcome:
            weighed.predict_without(site, [*weighed.without.get(site, []), column])
    for column in columns:
        weighed.flag(site, column)
    return out


def by_far(weighed: SiteTests, site: int) -> float:
    """Times the bar, that no hospital differs by; more where there is less to compare with."""
    few = len(weighed.published.sites) < FEW_SITES or weighed.published.rows[site] < FEW_ROWS
    return BY_FAR * (CAREFUL if few else 1.0)


def loudest_count(weighed: SiteTests, gains: dict[int, float], loud: Flags) -> int:
    """The column that explains most of those whose own counts are off: these cannot come from a wrong outcome. -1 if
    there is none."""
    counted = {*weighed.first[loud & weighed.marginal].tolist()} - {weighed.outcome}
    counted &= {*gains}
    return max(counted, key=lambda c: gains[c]) if counted else -1


def choose_end(weighed: SiteTests, site: int, column: int, columns: list[int], live: Flags) -> int:
    """A column and the outcome go otherwise together: which of the two is it? Counts that are off speak against their
    column, among sites that are alike."""
    outcome, off = weighed.outcome, weighed.marginal & (weighed.beyond[site] > OFF) & weighed.alike
    if outcome in columns:
        return column
    first = column if column != outcome else strongest_tie(weighed, site, live)
    if column == outcome and off[weighed.first == outcome].any():
        return column
    if first >= 0 and off[weighed.first == first].any():
        return first
    misplaced = most_misplaced(weighed, site, live)
    if weighed.alike and misplaced >= 0:
        return misplaced if misplaced == outcome else misplaced_or_outcome(weighed, site, misplaced, live)
    if first < 0:
        return column
    speaks = outcome_or(weighed, site, first, live)
    if column == outcome:
        return first if speaks < -FREE else outcome
    return outcome if speaks > 0 else column


def most_misplaced(weighed: SiteTests, site: int, live: Flags) -> int:
    """The column whose values belong to their rows the least: a wrong column makes those worse that it predicts, but
    itself the most. -1 if none is off."""
    off = np.where(live & (weighed.family == RATIO), weighed.beyond[site], 0.0)
    return int(weighed.first[off.argmax()]) if off.max(initial=0.0) > OFF else -1


def misplaced_or_outcome(weighed: SiteTests, site: int, column: int, live: Flags) -> int:
    """Values that do not belong to their rows, or an outcome that does not: a wrong column does not fit the other
    features either; with a wrong outcome the others do not predict it either."""
    test = int(np.flatnonzero((weighed.family == RATIO) & (weighed.first == weighed.outcome))[0])
    if not live[test] or weighed.beyond[site, test] < OFF:
        return column
    seen, expected = without_outcome(weighed, site, column)
    speaks = (seen - expected) ** 2 - seen**2 + outcome_or(weighed, site, column, live)
    return weighed.outcome if speaks > 0 else column


def strongest_tie(weighed: SiteTests, site: int, live: Flags) -> int:
    """The column whose tie with the outcome is off the most; -1 if none is."""
    off = np.where(live & (weighed.family == OUTCOME), weighed.beyond[site], 0.0)
    return int(weighed.first[off.argmax()]) if off.max(initial=0.0) > OFF else -1


def outcome_or(weighed: SiteTests, site: int, column: int, live: Flags) -> float:
    """Above 0 where the outcome is likelier wrong than a column, as twice a log likelihood ratio: a wrong column loses
    its other ties as well, and with a wrong outcome the other columns do not predict it either."""
    own = np.flatnonzero(live & (weighed.family == OUTCOME) & (weighed.first == column))
    if not len(own):
        return 0.0
    tie = own[weighed.beyond[site, own].argmax()]
    lost = float(np.clip(weighed.mine[site, tie] / (weighed.theirs[site, tie] or 1e-9), -1.0, 1.0))
    level = int(tie - np.flatnonzero(weighed.family == OUTCOME)[0]) % int(weighed.predicted.sum())
    (own_share, e), (predicted_share, f) = (
        association_kept(weighed, site, column),
        predicted_by(weighed, site, column, level),
    )
    return ((own_share - lost) ** 2 - (own_share - 1) ** 2) / e**2 + (
        (predicted_share - 1) ** 2 - (predicted_share - lost) ** 2
    ) / f**2


def association_kept(weighed: SiteTests, site: int, column: int) -> tuple[float, float]:
    """How a column keeps to its ties with other columns, and how surely."""
    share, v = keeping(weighed.published, weighed.accused)
    x = float(share[site, column])
    return (x, float(np.sqrt(v[site, column]))) if np.isfinite(x) else (1.0, 9.0)


def predicted_by(weighed: SiteTests, site: int, column: int, level: int) -> tuple[float, float]:
    """How well the other columns predict an outcome, as a multiple of how well they do elsewhere, and how surely."""
    place, before = np.flatnonzero(weighed.predicted)[level], weighed.without.get(site, [])
    weighed.predict_without(site, [*before, column])
    mine, usual, rows = (float(a[site, place]) for a in (weighed.mine, weighed.theirs, weighed.rows))
    weighed.predict_without(site, before)
    size = rows * usual**2
    return (mine / usual, size**-0.5) if size > 1 else (1.0, 9.0)


def attribute(weighed: SiteTests, site: int, live: Flags) -> dict[int, float]:
    """How much each cell explains of what is off at a site: its counts once, and each of its ties."""
    reach = np.where(weighed.marginal, weighed.beyond[site], np.maximum(weighed.beyond[site], weighed.reach[site]))
    reach = np.where(live & (weighed.z[site] > 0), np.minimum(reach, 60.0), 0.0)
    gain = np.maximum(0.0, reach**2 - FREE)
    best: dict[tuple[int, object], float] = {}
    for i in np.flatnonzero(gain > 0):
        for column in {int(weighed.first[i]), int(weighed.second[i])} - {-1}:
            family = str(weighed.family[i])
            if column == weighed.outcome and family == OUTCOME:
                continue  # the outcome is judged by how well it is predicted, and by its own counts
            pair = (int(weighed.first[i]), int(weighed.second[i]))
            key = (column, "counts" if weighed.marginal[i] else PREDICTED if family == RATIO else pair)
            if family == PREDICTED:
                key = (column, PREDICTED)
            best[key] = max(best.get(key, 0.0), float(gain[i]))
    out: dict[int, float] = {}
    for (column, _), g in best.items():
        out[column] = out.get(column, 0.0) + g
    return out


def _finding(weighed: SiteTests, site: int, column: int, diagnosis: Diagnosis, strength: float) -> Finding:
    p = weighed.published
    return Finding(
        p.sites[site],
        p.layout.columns[column],
        diagnosis.kind,
        diagnosis.wrong,
        round(strength, 3),
        diagnosis.text,
        diagnosis.numbers,
    )


def differing(weighed: SiteTests, reported: set[tuple[str, str]]) -> list[Finding]:
    """Cells beyond chance, but not beyond how sites differ anyway."""
    p = weighed.published
    over = weighed.z / weighed.bar
    out = []
    for site in range(len(p.sites)):
        tests: dict[int, list[int]] = {}
        for i in np.flatnonzero(over[site] > 1):
            columns = {int(weighed.first[i]), int(weighed.second[i])} - {-1}
            if any((p.sites[site], p.layout.columns[c]) in reported for c in columns):
                continue
            for c in columns - {weighed.outcome} or columns:
                tests.setdefault(c, []).append(int(i))
        for c, own in tests.items():
            diagnosis = differs(weighed, site, c, np.array(own))
            out.append(_finding(weighed, site, c, diagnosis, float(over[site, own].max())))
    return sorted(out, key=lambda f: -f.strength)


def all_cells(weighed: SiteTests, findings: list[Finding]) -> pd.DataFrame:
    p = weighed.published
    over = weighed.beyond / weighed.bar
    strength = np.zeros((len(p.sites), len(p.layout.columns)))
    for columns in (weighed.first, weighed.second):
        here = columns >= 0
        for s in range(len(p.sites)):
            np.maximum.at(strength[s], columns[here], over[s, here])
    finding_of = {(f.site, f.feature): f for f in findings}
    rows = []
    for s, site in enumerate(p.sites):
        for c, name in enumerate(p.layout.columns):
            f = finding_of.get((site, name))
            rows.append(
                (
                    site,
                    name,
                    f.strength if f else round(float(strength[s, c]), 3),
                    bool(f and f.wrong),
                    f.kind if f else "",
                )
            )
    return pd.DataFrame(rows, columns=["site", "feature", "strength", "wrong", "kind"])
