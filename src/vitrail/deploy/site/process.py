"""`vitrail join`: a site's own process. It holds the rows; FLARE's process beside it holds none."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from vitrail.core.errors import MessageRefused, Problem, VitrailError
from vitrail.data.persons import count_units
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.notices import kind_of
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.file_sheet import file_sheet
from vitrail.deploy.consent.form import AcceptNote, ConsentForm, accept_text, site_form
from vitrail.deploy.identity.enrolment_records import Kit
from vitrail.deploy.identity.participants import complete
from vitrail.deploy.identity.signing import Signer
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import FINAL, Message, unpack
from vitrail.deploy.site.privacy_ledger import PrivacyLedger
from vitrail.deploy.site.site import Site
from vitrail.deploy.site.unscaled_columns import check_first_report
from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.connectivity import AWAY, Connectivity
from vitrail.deploy.transport.ipc import Pipe
from vitrail.deploy.transport.refusals import Refusals
from vitrail.deploy.transport.supervisor import stop
from vitrail.deploy.two_server.server import SecondServer
from vitrail.deploy.vertical.party import PartyEndpoint
from vitrail.quality.checks.table import find_faults, to_text
from vitrail.storage.atomic_files import hold, private_folder, write_atomically
from vitrail.storage.journal import write_once

FRAMES = 6  # of a traceback, the innermost, that the outbox holds
NO_SANDBOX = "no sandbox"  # the kind of the outbox's line
NO_SANDBOX_WORDS = (
    "FLARE's processes are not confined (--no-sandbox): they can read everything that the user who "
    "runs `vitrail` can read."
)
LINGER = 3.0  # seconds after the last answer, so that it arrives
# signs of trouble in what FLARE's process writes
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # the other machine's, found here
REFUSED = "registration rejected: register_client unauthenticated"  # by our Doorkeeper over there


def agree(
    kit: Kit,
    data: Path,
    accept: str,
    publishes: bool,
    shows: bool = False,
    most_epsilon: float | None = None,
    sandbox: bool = True,
) -> tuple[Agreement, pd.DataFrame, PrivacyLedger]:
    """Before anything leaves: the file is checked, the form is shown, and somebody says yes to exactly that.
    `most_epsilon`: what no run of these rows may exceed; without it, what was set before."""
    if shows and not kit.study.verdict:
        what, hint = "this study has no verdict that could be shown.", "Leave it out."
        raise VitrailError("the site cannot join", [Problem("--show-verdict", what, hint)])
    if not kit.approved:
        hint = "Give the coordinator's approval: --approval FILE."
        raise VitrailError(
            "the site cannot join", [Problem(str(kit.folder), "the coordinator has not approved this kit yet.", hint)]
        )
    if kit.site == kit.study.protect.second:
        what, hint = (
            "this is the kit of the second server, which holds no rows.",
            f"Start the second server: vitrail serve {kit.folder} --second",
        )
        raise VitrailError("the site cannot join", [Problem(str(kit.folder), what, hint)])
    roster = complete(kit.participants, str(kit.folder))
    agreement = Agreement.of(kit.study, kit.seed, roster)
    frame = read_table(data, kit.study)
    print(to_text(find_faults(frame, kit.study), data.name, len(frame), kit.study.row_word))
    check_first_report(agreement, kit.site, frame)
    ledger = PrivacyLedger(kit.home, data, frame, agreement, most_epsilon)
    print(file_sheet(agreement, publishes, count_units(frame, kit.study), ledger))
    form = site_form(agreement, kit.site, list(roster), publishes, shows)
    show_form(form, kit.home)
    ledger.check()
    accepted = {"agreement": agreement.hash, "form": form.hash, "publishes": publishes}
    accepted |= ({"shows": True} if shows else {}) | ({} if sandbox else {"sandbox": False})
    agreed_to(kit, form.hash, accepted, accept)
    return agreement, frame, ledger


def form_of(kit: Kit, publishes: bool = True, shows: bool = False) -> ConsentForm:
    """What the site of an approved kit accepts when it joins so; for programs that start sites."""
    roster = complete(kit.participants, str(kit.folder))
    agreement = Agreement.of(kit.study, kit.seed, roster)
    return site_form(agreement, kit.site, list(roster), publishes, shows)


def show_form(form: ConsentForm, home: Path, ending: str = "", spent: bool = False, **matches: int) -> None:
    """The form, a file that holds it alone, and below it how to accept it."""
    print(form.text)
    print(accept_text(AcceptNote(form.hash, form.save(home).name, ending, spent, **matches)))


def agreed_to(kit: Kit, mark: str, accepted: dict[str, Any], accept: str) -> None:
    """Whether somebody says yes to exactly `accepted`, now or before; `mark`: the hash of the form that was shown."""
    place = kit.home / "accepted.json"
    if not accepted.get("sandbox", True):
        print(NO_SANDBOX_WORDS)
    if accept and accept != mark:
        what = f"--accept gives the hash {accept}, but the hash of the form is {mark}."
        raise VitrailError(
            "this is not the form that was accepted", [Problem("consent form", what, "Read the form again.")]
        )
    if not accept and not (place.exists() and json.loads(place.read_text()) == accepted):
        if not sys.stdin.isatty():
            hint = f"Read the form, then run the same command with --accept {mark}"
            raise VitrailError(
                "nobody agreed",
                [Problem("consent form", "there is no terminal in which a person could be asked.", hint)],
            )
        if input("Do you agree to exactly this? Type yes: ").strip().lower() != "yes":
            raise VitrailError(
                "nobody agreed", [Problem("consent form", "the answer was no.", "Nothing has left this site.")]
            )
    private_folder(kit.home)
    write_atomically(place, json.dumps(accepted))


class TransportConsole:
    """What FLARE's process writes from now on, and which of the known signs of trouble are in it: each once, but
    AWAY whenever it is there."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.seen = path, path.stat().st_size if path.exists() else 0, set[str]()

    def signs(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self.at += len(whole)
        fresh = [sign for sign in (UNTRUSTED, REFUSED, AWAY) if sign.encode() in whole and sign not in self.seen]
        self.seen.update(sign for sign in fresh if sign != AWAY)
        return fresh


class SiteProcess:
    """Answers what comes through FLARE, one question at a time, and keeps FLARE's process running."""

    reach: Connectivity  # while it stays

    def __init__(
        self,
        kit: Kit,
        site: Site | PartyEndpoint | SecondServer,
        say: Callable[[str], None],
        keep: int | None = None,
        pen: Signer | None = None,
        sandbox: bool = True,
    ) -> None:
        """`sandbox`: FLARE's processes are shut in."""
        self.kit, self.site, self.say, self.sandbox = kit, site, say, sandbox
        self.refusals = Refusals(self._not_ours)
        self.start = secrets.token_hex(4)  # of this process, among those of one home
        self.outbox = Outbox(kit.home, keep, pen)
        self.busy, self.finished = threading.Lock(), threading.Event()
        self.lock = (kit.home / ".lock").open("w")
        if not hold(self.lock):
            what = "another process of this site is running."
            raise VitrailError("the site is joined already", [Problem(str(kit.home), what, "Stop that process first.")])

    def stay(self) -> None:
        """Until the study is finished."""
        from vitrail.deploy.transport.flare import components
        from vitrail.deploy.transport.flare import workspace as kits

        if not self.sandbox:
            self.outbox.note(NO_SANDBOX, NO_SANDBOX_WORDS)
        kits.build_site(self.kit.folder)
        self.reach = Connectivity(self.kit.address, self.say)
        workspace = self.kit.folder / "flare"
        listener = ipc.Listener()
        threading.Thread(target=_warm, daemon=True).start()
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        flare, pause, console = None, 1.0, TransportConsole(workspace / "console.txt")
        try:
            while not self.finished.wait(0.2):
                for sign in console.signs():
                    self._tell(sign)
                self.reach.look()
                if flare is None or flare.poll() is not None:
                    if flare is not None:
                        self.reach.missed()
                        time.sleep(pause)
                        pause = min(60.0, 2 * pause)
                    longest = self.site.agreed.longest
                    given = workspace, self.kit.identity, listener.place, self._copy(), longest
                    flare = components.start_site(*given, boxed=self.sandbox)
                    began = time.time()
                    self.reach.note_start()
                elif time.time() - began > 60:
                    pause = 1.0
            time.sleep(LINGER)
        finally:
            listener.close()
            stop(flare)

    def _tell(self, sign: str) -> None:
        """In plain words why there is no connection; who is refused stops, since knocking disturbs who is inside."""
        if sign == AWAY:
            self.reach.missed()
            return
        if sign == REFUSED:
            what = "this site was removed from the study, was never enrolled, or its kit is in use elsewhere."
            hint = "Stop the other process, or call the coordinator, whose screen shows the reason."
            raise VitrailError("the coordinator refused this site", [Problem(self.kit.address, what, hint)])
        self.say(
            f"The machine at {self.kit.address} is not this study's coordinator: its certificate is not from the "
            "authority that invited this site, or is not valid today. Nothing was sent. Ask the "
            "coordinator for the address, and check this machine's clock."
        )

    def _copy(self) -> str:
        """Which copy of the kit this is, and which start of it. A kit that was copied elsewhere has another home; where
        the home was copied too, two processes are told apart by their starts."""
        copy = write_once(self.kit.home / "copy.txt", lambda: secrets.token_hex(8).encode())
        return f"{copy.decode().strip()}.{self.start}"

    def _accept(self, listener: ipc.Listener) -> None:
        while True:
            try:
                end = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(end,), daemon=True).start()

    def _serve(self, end: Pipe) -> None:
        """A question, or the guard's report of what it refused."""
        with end, contextlib.suppress(EOFError, OSError, ValueError):
            head, body = end.get(self.site.agreed.longest + 1)
            if head.get("event") == ipc.NOT_OURS:
                self.refusals.add(head)
                return
            self.reach.note_question()
            end.put({}, self.answer(body))

    def _not_ours(self, text: str) -> None:
        self.say(text)
        with contextlib.suppress(VitrailError), self.busy:  # a full disk is told where something would leave
            self.outbox.note(ipc.NOT_OURS, text)

    def answer(self, body: bytes) -> bytes:
        """One question's answer, checked and recorded before it leaves; an error is told without data.

        What cannot be written down does not leave: then this raises, and the coordinator hears nothing."""
        with self.busy:
            try:
                answer = self._said(body)
                data = answer.pack()
                while self.site.notices:  # before the answer leaves
                    text = self.site.notices.pop(0)
                    self.outbox.note_question(text, kind_of(text))
                    self.say(text)
                if answer.kind != "relay":  # sealed letters: each was recorded before it was sealed
                    self.outbox.record(answer, data)
            except VitrailError as error:
                self.say(str(error))
                raise OSError("nothing leaves") from None
            if answer.kind == "finish" or answer.words.get("stays") is False:
                self.finished.set()
            return data

    def _said(self, body: bytes) -> Message:
        try:
            if len(body) > self.site.agreed.longest:
                what = f"it is longer than {self.site.agreed.longest} bytes, the agreed maximum."
                raise MessageRefused("message", what, "The message was dropped without being read.")
            question = unpack(body)
            self.outbox.received(question.kind, question.words, len(body))
            return self.site.answer(question)
        except VitrailError as error:
            outside = error.to_outside() or f"a problem at the site, reference {new_reference()}"
            self._log_error(str(error) if error.to_outside() else f"{outside}: {error}")
            return Message("error", {"text": outside} | ({FINAL: True} if error.ends_run else {}))
        except Exception as error:
            outside = f"internal error, reference {new_reference()}"
            frames = "".join(traceback.format_tb(error.__traceback__, -FRAMES))
            self._log_error(f"{outside}: {type(error).__name__}: {error}", f"\n{frames}")
            return Message("error", {"text": outside})

    def _log_error(self, text: str, more: str = "") -> None:
        """For people here; `more` for the outbox only."""
        self.outbox.refused(text + more)
        self.say(text)


def new_reference() -> int:
    """By which people at the site find in their outbox what the coordinator asks about. It tells nothing by itself."""
    return 100_000 + secrets.randbelow(900_000)


def _warm() -> None:
    """torch's optimisers load much when first used, which a coordinator should not wait for."""
    number = torch.zeros(1, requires_grad=True)
    torch.optim.LBFGS([number]).step(lambda: number.sum())  # type: ignore[no-untyped-call]
