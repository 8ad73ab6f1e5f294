"""A site's side of shares: before each round it works out its own, and takes part or does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.core.errors import MessageRefused, Problem, VitrailError
from vitrail.deploy.audit.notices import Notice
from vitrail.deploy.identity.site_identity import SignedKeys, SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_validation import MOST_ROWS
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.share.shared import LISTED, ROWS, SHARE, STATEMENT, rows_text, states_rows
from vitrail.privacy.round_share import ShareLimits, admitted, shares_of
from vitrail.storage.journal import DecisionRecord
from vitrail.study.model import Study

FILE = "shares.json"  # in the folder of a run: what the others signed, and what was said here last


def own_limits(study: Study, least: float | None, most: float | None) -> ShareLimits:
    """What somebody states when a site joins; refused where the study does not tell sites their share."""
    options = {"--least-share": least, "--most-share": most}
    given = [name for name, value in options.items() if value is not None]
    own = ShareLimits(least or 0.0, 1.0 if most is None else most)
    problems = []
    if given and study.share is None:
        what, hint = "this study tells no site its share.", "Leave it out, or ask the coordinator for [share]."
        problems = [Problem(name, what, hint) for name in given]
    elif study.share is not None:
        least, most = ShareLimits(study.share.least, study.share.most).with_own(own)
        if least > most:
            what = f"with the limits of the study no share is at least {least:g} and at most {most:g}."
            problems = [Problem(", ".join(given), what, "Widen them.")]
    if problems:
        raise VitrailError("the site cannot join", problems)
    return own


class SiteShares:
    """`home`: the site's folder of this run; `own`: the limits that somebody here set; `rows`: that it trains on."""

    def __init__(
        self, site: str, agreed: Agreement, home: Path, proof: SiteIdentity | None, own: ShareLimits, rows: int
    ) -> None:
        if proof is None:
            raise MessageRefused(SHARE, "this site cannot prove who it is, and takes part in no study with [share].")
        self.site, self.agreed, self.run, self.proof, self.rows = site, agreed, home.name, proof, rows
        self.record = DecisionRecord(home / FILE, private=True)
        stated = agreed.study.share
        assert stated is not None
        self.limits, self.own = ShareLimits(stated.least, stated.most), own

    def statement(self) -> dict[str, str]:
        """This site's number of rows, signed; for the answer to `prepare`."""
        if not states_rows(self.agreed):
            return {}
        return self.proof.signed(rows_text(self.agreed, self.run, self.site, self.rows))

    def refusal(self, asked: Message, notices: list[str]) -> bool:
        """Whether this site takes no part in that round. Says so to people here when that changes."""
        listed, weights = self._listed(asked.words), self._weights(asked.words)
        if missing := [name for name in listed if name not in weights]:
            raise MessageRefused(SHARE, f"the number of rows of {missing[0]} is not stated.")
        there = admitted(self.limits, weights, listed)
        inside = self.site in there and self.limits.with_own(self.own).allow(shares_of(weights, there)[self.site])
        self._say(asked, listed, there, weights, inside, notices)
        return not inside

    def _listed(self, words: Mapping[str, Any]) -> list[str]:
        """The sites of the round, as far as this site knows them; under masks those whose keys it was given."""
        listed, second = words[SHARE].get(LISTED), self.agreed.study.protect.second
        if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed) or len({*listed}) < len(listed):
            raise MessageRefused(SHARE, "expected the names of the sites of the round, each once.")
        if strangers := [n for n in listed if n not in self.proof.roster or n == second]:
            raise MessageRefused(SHARE, f"{strangers[0][:40]} is not a site that this one accepted.")
        if self.site not in listed:
            raise MessageRefused(SHARE, "this site is asked for a round of which it is not said to be a part.")
        if "sum" in words and sorted(listed) != sorted(words["sum"].get("roster", ())):
            raise MessageRefused(SHARE, "the list is not that of the sum under masks.")
        return listed

    def _weights(self, words: Mapping[str, Any]) -> dict[str, float]:
        """What each site weighs; from statements that were checked, now or before."""
        if not states_rows(self.agreed):
            return dict.fromkeys(self.proof.roster, 1.0)
        available: dict[str, int] = self.record.read().get(ROWS, {})
        stated = words[SHARE].get(ROWS)
        if not isinstance(stated, dict):
            raise MessageRefused(SHARE, "expected what sites signed of their rows.")
        for name, statement in stated.items():
            rows, signed = _read(name, statement)
            if available.get(name, rows) != rows or (name == self.site and rows != self.rows):
                raise MessageRefused(SHARE, f"{name[:40]} stated another number of rows in this run.")
            if name not in available:
                text = rows_text(self.agreed, self.run, name, rows)
                self.proof.check(name, signed.certificate, text, signed.signature)
        if new := {name: statement[0] for name, statement in stated.items() if name not in available}:
            available = {**available, **new}
            self.record.update({ROWS: available})
        return {name: float(rows) for name, rows in available.items()}

    def _say(
        self,
        asked: Message,
        listed: list[str],
        there: list[str],
        weights: Mapping[str, float],
        inside: bool,
        notices: list[str],
    ) -> None:
        sites = there if self.site in there else listed
        share, total = shares_of(weights, sites)[self.site], sum(weights[n] for n in sites)
        what = f"{weights[self.site]:.0f} of {total:.0f} training rows"
        what = what if states_rows(self.agreed) else "all count the same"
        text = f"its share of the {len(sites)} sites is {100 * share:.1f} % ({what})"
        if not inside:
            least, most = self.limits.with_own(self.own)
            text = f"this site takes no part: {text}, and it accepts {100 * least:.1f} to {100 * most:.1f} %."
        else:
            text = f"this site takes part: {text}."
        if text != self.record.read().get("said"):
            self.record.update({"said": text})
            notices.append(Notice(f"From round {asked.words['round'] + 1} on {text}", SHARE))


def _read(name: Any, statement: Any) -> tuple[int, SignedKeys]:
    """A statement of anybody's writing."""
    try:
        rows, signature, certificate = statement
        if type(rows) is not int or not 0 <= rows <= MOST_ROWS:
            raise ValueError
        return rows, SignedKeys((), bytes.fromhex(signature), str(certificate))
    except (TypeError, ValueError):
        what = f"expected of {str(name)[:40]} a number of rows and {len(STATEMENT)} texts that prove it."
        raise MessageRefused(SHARE, what) from None
