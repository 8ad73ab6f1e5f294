"""`vitrail join` at a party: before anything leaves, its table is checked, the form is shown, and somebody says yes;
and once more when the number in common is known."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from vitrail.core.errors import PlacesRefused, Problem, VitrailError
from vitrail.core.text import several
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.form import ConsentForm
from vitrail.deploy.consent.party import party_form
from vitrail.deploy.identity import party_keys
from vitrail.deploy.identity.enrolment_records import Kit
from vitrail.deploy.identity.signing import Signer
from vitrail.deploy.site.process import SiteProcess, agreed_to, show_form
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.match_quota import MOST_MATCHES, RATIO, MatchQuota, list_ratio
from vitrail.deploy.vertical.party import PartyEndpoint
from vitrail.deploy.vertical.postrun import PostrunRequest
from vitrail.deploy.vertical.session import PartyProgram
from vitrail.quality.checks.table import to_text
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text
from vitrail.vertical.store import RATION
from vitrail.vertical.tables import check_party, read_party
from vitrail.vertical.training.ration import RationAccount


def pact_of(kit: Kit) -> PartyAgreement:
    """With the keys of all parties, as they came with the approval."""
    place = kit.folder / party_keys.CARDS
    if not kit.approved or not place.exists():
        hint = "Give the coordinator's approval: --approval FILE."
        raise VitrailError(
            "the party cannot join", [Problem(str(kit.folder), "the coordinator has not approved this kit yet.", hint)]
        )
    try:
        cards = json.loads(read_text(place, LONGEST_TEXT))
    except (OSError, ValueError, RecursionError):
        cards = None
    return PartyAgreement(kit.study, kit.seed, party_keys.read_cards(cards, kit.study.parties, kit.authority, place))


def agree_party(
    kit: Kit,
    data: Path,
    accept: str,
    ration: tuple[int | None, int | None],
    look_up: bool = False,
    ratio: float | None = None,
    sandbox: bool = True,
) -> tuple[PartyAgreement, pd.DataFrame, tuple[int, int]]:
    """The pact, the table, and the ration that holds. `ratio`: how many times as long as this party's list another's
    may be."""
    study = kit.study
    pact, mine, most, form = form_of_party(kit, ration, look_up, ratio)
    frame = read_party(data, study, kit.site)
    print(to_text(check_party(frame, study, kit.site), data.name, len(frame), study.row_word))
    matches = MatchQuota(kit.home)
    counts = {"begun": len(matches.begun), "allowed": matches.allowed, "matches": MOST_MATCHES}
    show_form(form, kit.home, matches.ending, matches.spent, **counts)
    yes = {"agreement": pact.hash, "form": form.hash, "ration": list(mine), "look_up": look_up, "list_ratio": most}
    yes |= {} if sandbox else {"sandbox": False}
    agreed_to(kit, form.hash, yes, _accepted(form.hash, accept, matches))
    return pact, frame, mine


def form_of_party(
    kit: Kit,
    ration: tuple[int | None, int | None] = (None, None),
    look_up: bool = False,
    ratio: float | None = None,
) -> tuple[PartyAgreement, tuple[int, int], float, ConsentForm]:
    """What the party of an approved kit accepts when it joins so: the pact, the ration and the ratio that hold, and the
    form."""
    study = kit.study
    if kit.site == study.host and any(n is not None for n in ration):
        what = f"{kit.site} is the host, which asks questions and answers none."
        raise VitrailError("a host has no ration", [Problem("--ration", what, "Omit it.")])
    assert study.match is not None
    pact, asked, most = pact_of(kit), study.parties[kit.site].ration, list_ratio(study.match.ratio, ratio)
    mine = (asked.training if ration[0] is None else ration[0], asked.after if ration[1] is None else ration[1])
    return pact, mine, most, party_form(pact, kit.site, mine, look_up, most)


def _accepted(mark: str, accept: str, matches: MatchQuota) -> str:
    """What --accept says of the form itself. Where all matches of the last yes were begun, its ending says yes to more;
    at a terminal somebody is asked. Without that yes the party joins, and begins no match."""
    renewed = f"{mark}{matches.ending}"
    if matches.spent and (accept == renewed or (not accept and sys.stdin.isatty() and _says_yes(MORE))):
        matches.allow_more()
    earlier = {f"{mark}-{number}" for number in range(2, matches.allowed // MOST_MATCHES + 1)}
    return mark if accept in earlier else accept


MORE = f"Allow {MOST_MATCHES} more matches? Each reveals to the others which of their ids are here. Type yes: "


def _says_yes(question: str) -> bool:
    return input(question).strip().lower() == "yes"


def take_part(
    kit: Kit,
    data: Path,
    accept: str,
    ration: tuple[int | None, int | None],
    places: bool,
    say: Callable[[str], None],
    keep: int | None = None,
    *,
    explain: int = 0,
    ask: Path | None = None,
    look_up: bool = False,
    another: bool = False,
    ratio: float | None = None,
    sandbox: bool = True,
) -> Path:
    """Until the study is finished; this party's folder of the run. `explain`, `ask`: a host's; `look_up`: a guest's;
    `another`: one more run may begin; `ratio`: how many times as long as this party's list another's may be."""
    host = kit.site == kit.study.host
    others = {"--look-up": look_up} if host else {"--explain": explain, "--ask": ask}
    if lost := [name for name, given in others.items() if given]:
        what = f"this option is not for a {('host' if host else 'guest')}."
        raise VitrailError("cannot join", [Problem(name, what, "Omit it.") for name in lost])
    new = None if ask is None else read_table(ask, kit.study)
    pact, frame, mine = agree_party(kit, data, accept, ration, look_up, ratio, sandbox)
    after = PostrunRequest(kit.study, kit.seed, say, explain, new)
    officer = Officer(kit, places, say)
    talk = PartyProgram(kit.study, kit.site, kit.seed, frame, kit.home, officer, mine, after, say, look_up)
    talk.list_ratio = list_ratio(kit.study.match.ratio if kit.study.match else RATIO, ratio)
    outbox = Outbox(kit.home, keep, Signer.of_site(kit))
    party = PartyEndpoint(kit.site, pact, party_keys.sealing_key(kit.folder), kit.home, outbox, talk.run, another)
    door = SiteProcess(kit, party, say, keep, sandbox=sandbox)
    door.outbox = party.outbox  # one log, one who knows its end
    role = "host" if host else "guest"
    say(f"{kit.site} takes part as {role}; coordinator at {kit.address}. Stop with Ctrl-C and join again at any time.")
    door.stay()
    return party.home


def ration_left(kit: Kit) -> list[str]:
    """Of a guest, for each run: what is left of what its officer allowed when it joined last."""
    out, accepted = list[str](), kit.home / "accepted.json"
    if kit.site == kit.study.host or not accepted.exists():
        return out
    training, after = json.loads(accepted.read_text(encoding="utf-8"))["ration"]
    for file in sorted(kit.home.glob(f"*/{RATION}"), key=lambda f: f.stat().st_mtime_ns):
        rows = len(json.loads(file.read_text(encoding="utf-8"))["asked"])
        spent = RationAccount(kit.site, rows, training, after, file)
        left = spent.left
        out.append(
            f"Ration, run {file.parent.name}: each row may be asked {left['training']} of {training} times more in "
            f"training, and {left['after']} of {several(after, 'row')} afterwards."
        )
    return out or [f"Ration: {several(training, 'time')} for each row in training, {several(after, 'row')} afterwards."]


class Officer:
    """Says yes to the places, once the number is known: beforehand (`places`), at the terminal, or on the next join."""

    def __init__(self, kit: Kit, places: bool, say: Callable[[str], None]) -> None:
        self.kit, self.places, self.say = kit, places, say
        self._lock = threading.Lock()

    def __call__(self, rows: int, mark: str, some: dict[tuple[str, ...], int]) -> None:
        with self._lock:
            self.say(f"{several(rows, 'id')} in common with all parties (match {mark}).")
            for guests, count in some.items():
                self.say(f"{several(count, 'id')} in common with {' and '.join(guests)}.")
            if not self.places and not self._asked():
                what = f"nobody here agreed that each party learns which of its rows these {rows} are."
                hint = (
                    "Join with --places to agree. The other parties learned the number of common rows, and nothing "
                    "else."
                )
                raise PlacesRefused("places", what, hint)
            write_atomically(self.kit.home / "places.json", json.dumps({"mark": mark, "rows": rows}))

    def _asked(self) -> bool:
        if not sys.stdin.isatty():
            return False
        return _says_yes("Reveal to each party which of its own rows these are? Type yes: ")
