"""Two invented hospitals: can a coordinator that enrols them read the single reports of the others, under masks?

    python benchmarks/attacks/attack_sybil.py          # writes results/attack_sybil.md

The heart study by FedAvg with masked sums, by messages to real `Site` objects with enrolled keys; over FLARE the same
is tests/deploy/transport/flare/test_flare_invented_sites.py. The coordinator has two hospitals of its own among the
participants and keeps to
the form of every message. Tried, in each of a few rounds, on every honest site:

    lists of three    each honest site is put into a sum of itself and the two, another list for each in the same round
    two stories       all report to one list; at the opening some are told that the victim reported, the others that it
                      fell silent, and the invented ones tell both of their shares
    second names      a certificate that the coordinator issues in another site's name, with a key of its own

`before` switches the present rules off (a list of any three, shares that need a bare majority, keys as they come):
the control, which shows that the attack works.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, folder_of, invitation_of
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.score_plan import report_spec
from vitrail.deploy.secure_sum.shared import (
    SumName,
    drawn_words,
    read_bytes,
    read_drawn,
    round_transcript,
    terms_of,
    to_tensors,
)
from vitrail.deploy.secure_sum.site import OWN, SumSite
from vitrail.deploy.site import site as site_module
from vitrail.deploy.site.private_randomness import SECRET
from vitrail.deploy.site.site import Site
from vitrail.privacy.secure_sum.dropout_tolerant import SumOpening
from vitrail.storage.atomic_files import private_folder, write_atomically

RESULTS = Path(__file__).parent / "results"
INVENTED = ("Bern", "Lausanne")
RUN, ROUNDS = "0123456789abcdef", 3
Ask = Callable[[dict[str, Message]], dict[str, Message | str]]  # answers, or in words why there is none


class Before(Agreement):
    """The rule as it was: a sum of any three sites, and of their shares a bare majority."""

    @property
    def fewest(self) -> int:
        return self.study.protect.least


def before(agreed: Agreement) -> Agreement:
    return Before(agreed.study, agreed.seed, agreed.sites, agreed.roster)


@dataclass
class Coordinator:
    """One that means harm. `ask`: to the honest sites; `proofs`: of the hospitals that it invented."""

    agreed: Agreement
    ask: Ask
    proofs: Mapping[str, SiteIdentity]
    place: Path
    run: str = RUN

    def begin(self, victims: Sequence[str]) -> dict[str, Message | str]:
        """Greets and prepares; everybody's keys of the run."""
        hello = Message("hello", {"run": self.run, "format": site_module.FORMAT, "agreement": self.agreed.hash})
        for message in (hello, Message("prepare", {"run": self.run})):
            for name, said in self.ask(dict.fromkeys(victims, message)).items():
                assert isinstance(said, Message), f"{name}: {said}"
        return self.ask(dict.fromkeys(victims, Message("mask", {"run": self.run, "leg": "ring"})))

    def word(self, r: int) -> tuple[int, dict[str, Tensor]]:
        place = self.agreed.stages[0].stage.turns(r)[0]
        return place, {k: v[0] for k, v in flatten(self.agreed.stages[0].turns[place].down)}

    def own(self, name: str, about: str) -> SumSite:
        """An invented hospital at one sum; in all sums with the same key."""
        home = self.place / name / about / self.run
        known = self.place / name / OWN
        sums = SumSite(name, before(self.agreed), home, self.proofs[name])
        if known.exists():
            write_atomically(private_folder(sums.place) / OWN, known.read_bytes(), private=True)
        else:
            write_atomically(private_folder(known.parent) / OWN, sums._own().private_bytes_raw(), private=True)
        return sums

    def ring(self, heard: Mapping[str, Message | str]) -> dict[str, dict[str, Any]]:
        own = {name: self.own(name, "ring")._ring() for name in self.proofs}
        return {n: m.words for n, m in heard.items() if isinstance(m, Message)} | own

    def lists_of_three(self, r: int, victims: Sequence[str], ring: Mapping[str, Any]) -> dict[str, Any]:
        """Of each victim what it reported, or in words why that could not be read."""
        place, down = self.word(r)
        at, where = {"run": self.run, "stage": 0, "round": r, "place": place}, (0, r, place)
        name, names = SumName.of_round(where), {v: sorted([v, *self.proofs]) for v in victims}
        transcript, legs = round_transcript(self.agreed, where, down), {"run": self.run, **name._asdict()}
        near = {v: {n: ring[n] for n in names[v] if n != v} for v in victims}
        keys = self.ask(
            {v: Message("mask", {**legs, "leg": "keys", "names": names[v], "ring": near[v]}) for v in victims}
        )
        out = {v: said for v, said in keys.items() if isinstance(said, str)}
        fakes = {(f, v): self.own(f, v) for f in self.proofs for v in victims}
        drawn = {v: {v: read_drawn(said.words)} for v, said in keys.items() if isinstance(said, Message)}
        for v in drawn:
            for f in self.proofs:
                seen = {n: ring[n] for n in names[v] if n != f}
                drawn[v][f] = read_drawn(fakes[f, v]._draw(name, names[v], seen))
        asked = {}
        for v in drawn:
            words = {"roster": names[v], "drawn": {f: drawn_words(drawn[v][f], sealed=False) for f in self.proofs}}
            asked[v] = Message("round", {**at, "score": [], "sum": words}, down)
        said = self.ask(asked)
        out |= {v: what for v, what in said.items() if isinstance(what, str)}
        shapes, opened = report_spec(self.agreed, *where), {}
        for v, report in said.items():
            if isinstance(report, str):
                continue
            flat = np.concatenate([report.tensors[k].numpy().view(np.uint64).ravel() for k in shapes])
            lists = {}
            for f in self.proofs:  # the invented ones report zeros
                party = fakes[f, v]._participant(name)
                rest = {n: d for n, d in drawn[v].items() if n != f}
                zeros = {k: np.zeros(s) for k, s in party.terms.shapes.items()}
                got = party.report(lambda z=zeros: z, names[v], transcript, rest, lambda *given: None)  # type: ignore[misc]
                flat = flat + np.concatenate([got[k].ravel() for k in shapes])
                lists[f] = party.signed_list().hex()
            sealed = {f: drawn[v][f].sealed[v].hex() for f in self.proofs}
            opened[v] = flat
            asked[v] = Message(
                "mask", {**legs, "leg": "open", "said": names[v], "lists": lists, "sealed": sealed, "next": {}}
            )
        for v, shares in self.ask({v: asked[v] for v in opened}).items():
            if isinstance(shares, str):
                out[v] = shares
                continue
            held = {v: read_bytes(shares.words["shares"])}
            for f in self.proofs:
                sealed_ = {n: d.sealed[f] for n, d in drawn[v].items() if n != f}
                party = fakes[f, v]._participant(name)
                held[f] = party.open(names[v], sealed_, dict.fromkeys(names[v], b""), lambda *given: None)
            terms = terms_of(before(self.agreed), self.run, name)
            total = SumOpening(terms, names[v], drawn[v], names[v], transcript).open(opened[v], held)
            out[v] = to_tensors(total, self.agreed.contracts[0][place].up)
        return out


class Caught(Exception):  # noqa: N818 - nothing went wrong
    """A report on its way into a sum."""

    def __init__(self, report: Mapping[str, Tensor]) -> None:
        self.report = dict(report)


def true_report(name: str, frame: pd.DataFrame, agreed: Agreement, home: Path, run: str, r: int) -> dict[str, Tensor]:
    """What the site, which keeps its secret in `home`, reports on the first word in that round of that run: worked out
    by a copy of it that adds nothing up."""
    place = agreed.stages[0].stage.turns(r)[0]
    down = {k: v[0] for k, v in flatten(agreed.stages[0].turns[place].down)}
    real = site_module.SumSite

    class Open:
        def __init__(self, *given: Any) -> None: ...

        def report(self, asked: Message, up: Callable[[], Mapping[str, Tensor]]) -> None:
            raise Caught(up())

    with tempfile.TemporaryDirectory() as made:
        base = private_folder(Path(made) / "home")
        (base / SECRET).write_bytes((home / SECRET).read_bytes())
        site = Site(name, frame, agreed, base)
        site_module.SumSite = Open  # type: ignore[assignment, misc]
        try:
            site.answer(Message("prepare", {"run": run}))
            words = {"run": run, "stage": 0, "round": r, "place": place, "score": [], "sum": {}}
            site.answer(Message("round", words, down))
        except Caught as caught:
            return caught.report
        finally:
            site_module.SumSite = real  # type: ignore[misc]
    raise AssertionError("it reported nothing")


def error(read: Mapping[str, Tensor], true: Mapping[str, Tensor]) -> float:
    """The largest difference between a number as it was read and as it is."""
    return max(float((read[k].double() - true[k].double()).abs().max()) for k in read)


def study_of(rounds: int = ROUNDS) -> vt.Study:
    given: dict[str, Any] = {"method": {"name": "fedavg"}, "training": {"rounds": rounds}, "screen": {"ask": False}}
    given["standardise"] = "local"  # so that nothing is summed before the first round
    return vt.Study.load(packaged("heart_disease.toml")).with_changes(**given, protect={"sum": "masked"})


def enrolled(place: Path, study: vt.Study, names: Sequence[str]) -> dict[str, enrolment.Kit]:
    study.save(place / "study.toml")
    folder = enrolment.invite(place / "study.toml", names, "localhost:8102")
    for name in names:
        made = enrolment.request(invitation_of(folder, name), place / f"{name}.kit", place / f"{name}.home")
        enrolment.approve(folder, made.file)
    return {name: enrolment.accept(place / f"{name}.kit", approval_of(folder, name)) for name in names}


def answered(sites: Mapping[str, Site]) -> Ask:
    def ask(questions: dict[str, Message]) -> dict[str, Message | str]:
        out = dict[str, Message | str]()
        for name, question in questions.items():
            try:
                out[name] = sites[name].answer(question)
            except VitrailError as error:
                out[name] = "; ".join(p.what for p in error.problems)
        return out

    return ask


def main() -> None:
    torch.set_num_threads(1)
    tables, study = heart_disease(), study_of()
    names = [*tables, *INVENTED]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vitrail-sybil-") as made:
        place = Path(made)
        kits = enrolled(place, study, names)
        roster = next(iter(kits.values())).participants.roster
        agreed = Agreement.of(study, None, roster)
        for rule, held in (("before", before(agreed)), ("now", agreed)):
            homes = {n: private_folder(place / rule / n) for n in tables}
            sites = {n: Site(n, t, held, homes[n], True, SiteIdentity.of(kits[n])) for n, t in tables.items()}
            proofs = {f: SiteIdentity.of(kits[f]) for f in INVENTED}
            evil = Coordinator(agreed, answered(sites), proofs, place / rule / "evil")
            ring = evil.ring(evil.begin(list(tables)))
            for r in range(ROUNDS):
                for name, read in evil.lists_of_three(r, list(tables), ring).items():
                    true = true_report(name, tables[name], agreed, homes[name], RUN, r)
                    size = float(torch.cat([v.ravel() for k, v in true.items() if k != "weight"]).norm())
                    rows.append((rule, name, r, read if isinstance(read, str) else error(read, true), size))
        rows_names = _second_names(place, kits, agreed)
    text = [
        f"# Two invented hospitals, {time.strftime('%Y-%m-%d')}",
        "",
        "`python benchmarks/attacks/attack_sybil.py`: the heart study by FedAvg under masks; four hospitals and two that the",
        f"coordinator invented ({' and '.join(INVENTED)}), all six on the list of participants that was accepted;",
        f"{ROUNDS} rounds. Over FLARE the same is `tests/deploy/transport/flare/test_flare_invented_sites.py`.",
        "",
        "## Lists of three",
        "",
        "In every round each hospital is put into a sum of itself and the two. `before`: the rule was any three sites.",
        "",
        "| rule | site | rounds in which its single report was read | largest error of a number | why not |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for rule in ("before", "now"):
        for name in tables:
            mine = [found for told, site, _, found, _ in rows if (told, site) == (rule, name)]
            read, why = [x for x in mine if not isinstance(x, str)], [x for x in mine if isinstance(x, str)]
            worst = f"{max(read):.1e}" if read else "-"
            text.append(f"| {rule} | {name} | {len(read)} of {len(mine)} | {worst} | {why[0] if why else ''} |")
    text += ["", *rows_names, "", *_two_stories()]
    print("\n".join(text))
    (RESULTS / "attack_sybil.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def _second_names(place: Path, kits: Mapping[str, enrolment.Kit], agreed: Agreement) -> list[str]:
    """A certificate in hungarian's name for the coordinator's own key, shown to va."""
    from cryptography.hazmat.primitives.asymmetric import rsa

    from vitrail.deploy.identity.certificates import StudyAuthority, fingerprint_key
    from vitrail.deploy.identity.documents import identity_of

    key, who = rsa.generate_private_key(public_exponent=65537, key_size=2048), identity_of("hungarian")
    folder = folder_of(place / "study.toml")
    false = SiteIdentity(
        key, StudyAuthority(folder).sign(key.public_key(), who, "site", [who]), kits["va"].authority, agreed.roster
    )
    out = ["## A second certificate in a site's name", ""]
    for rule, roster in (
        ("before (the key that is seen first)", {**agreed.roster, "hungarian": fingerprint_key(key.public_key())}),
        ("now (the key that was accepted)", agreed.roster),
    ):
        try:
            replace(SiteIdentity.of(kits["va"]), roster=roster).check(
                "hungarian", false.certificate, b"x", false.sign(b"x")
            )
            out.append(f"- {rule}: believed.")
        except VitrailError as refusal:
            named = "this site accepted it with the key" in refusal.problems[0].what
            out.append(f"- {rule}: refused{', since another key was accepted' if named else ''}.")
    return out


def _two_stories() -> list[str]:
    from vitrail.deploy.consent.participants import accomplices
    from vitrail.privacy.secure_sum.fixed_point import fewest_of

    out = ["## Accomplices that it takes", ""]
    out += [
        "Two stories: some holders of shares are told that a site reported, others that it fell silent; accomplices",
        "tell both kinds (tests/privacy/secure_sum/test_dropout_tolerant.py does it with five sites). Before, a majority told a secret,",
        "and any three were a list. Now it takes what the form says: so many that tell two stories where more than two",
        "thirds tell a secret, or all others of the shortest list, whichever is fewer.",
        "",
        "| sites | sum of at least | accomplices before | accomplices now, of |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for n in (3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30):
        held = max(3, n // 2 + 1) if n <= 20 else 8
        old = min(2, 2 * held - (n if n <= 20 else 15)) if n > 3 else 2
        out.append(f"| {n} | {fewest_of(n, 3)} | {old} | {accomplices(n, 3)} of {n - 1} |")
    return out


if __name__ == "__main__":
    main()
