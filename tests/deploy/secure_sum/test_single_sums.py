"""The sums before the first round, of the common scale and of the screening: who falls silent at any leg holds up
nobody; and what a coordinator gets that asks in messages of the agreed form and means harm. Each attack has a control
without the rule that stops it, in which it works."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import vitrail as vt
from tests.support.deploy.masked_runs import FRAMES, NAMES, RUN, KilledError, Masked, agreement
from tests.support.deploy.sum_attacks import SumAttacker
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.coordinator.requests import Responses
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.screening.site import ASKED, PLACE, SUMMED
from vitrail.deploy.secure_sum.shared import SCALE, SCREENING, SumName, read_name, terms_of, transcript_of
from vitrail.privacy.secure_sum import dropout_tolerant
from vitrail.privacy.secure_sum.dropout_tolerant import OPENING, self_stream, signed_text
from vitrail.privacy.secure_sum.limbs import from_limbs
from vitrail.quality.screening.schema import ScreeningSchema
from vitrail.runs.setup import resolve

LESS = [n for n in NAMES if n != "va"]
LEGS = {SCALE: ("ring", "keys", "standardise", "open"), SCREENING: ("ring", "keys", "total", "open")}


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


@cache
def screened(protect: str = "masked") -> Agreement:
    """The heart study, for which sites are also screened."""
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        training={"rounds": 1}, standardise="global", protect={"sum": protect, "scores": "exact"}
    )
    return Agreement.of(resolve(study, "fedavg", None)[0], None, 4)


def leg_of(asked: Message) -> str:
    leg: str = asked.words.get("leg", asked.kind)
    return leg


def purpose_of(asked: Message) -> str:
    """Of which sum a question is, where it is of one."""
    if asked.kind == "standardise" or (asked.kind == "screen" and leg_of(asked) == "total"):
        return SCALE if asked.kind == "standardise" else SCREENING
    return str(asked.words.get("purpose", ""))


# who falls silent


def silent_at(purpose: str, leg: str, *sites: str) -> Callable[[str, Message], bool]:
    def away(name: str, asked: Message) -> bool:
        mine = leg == "ring" if leg_of(asked) == "ring" else purpose_of(asked) == purpose
        return name in sites and mine and leg_of(asked) == leg

    return away


def ties(way: Masked, name: str) -> torch.Tensor:
    """What that site was sent after the total, as far as it follows from it."""
    return next(a.tensors["products"] for n, a, _ in way.said if n == name and leg_of(a) == "ties")


def answer_of(way: Masked, name: str) -> torch.Tensor:
    return next(m.tensors["predicted"] for n, a, m in way.said if n == name and leg_of(a) == "ties")


@pytest.mark.parametrize("leg", LEGS[SCALE])
def test_a_site_that_falls_silent_in_the_scale_holds_up_nobody(leg: str, tmp_path: Path) -> None:
    """The scale is of those who reported; in whom nobody was waited for, the study goes on."""
    way = Masked(tmp_path, agreement(rounds=1))
    way.away = silent_at(SCALE, leg, "va")
    way.conduct(quorum=3)
    entered = json.loads((tmp_path / "run" / "entered.json").read_text())
    assert set(entered["sites"]) == set(NAMES), "it trains all the same"
    names = NAMES if leg == "open" else LESS
    rows = [way.sites[n].rows.iloc[way.sites[n].splits[n][0]] for n in names]
    pooled = np.concatenate([r["age"].to_numpy() for r in rows])
    mean, sd = (entered["scale"][k][0] for k in ("mean", "sd"))
    assert (mean, sd) == pytest.approx((pooled.mean(), pooled.std()), rel=1e-12)
    missing = [details["sites"] for event, details in way.events if event == "not in the scale"]
    assert missing == ([] if leg == "open" else [["va"]])
    assert not [details for event, details in way.events if event == "set aside"]


@pytest.mark.parametrize("protect", ["masked", "plain"])
@pytest.mark.parametrize("leg", LEGS[SCREENING])
def test_a_site_that_falls_silent_in_the_screening_holds_up_nobody(leg: str, protect: str, tmp_path: Path) -> None:
    """The total is opened without it, and it takes its own rows out of no total that it may not be part of."""
    way = Masked(tmp_path, screened(protect))
    way.away = silent_at(SCREENING, leg, "va")
    run = way.conduct(quorum=3)
    assert run.screening is not None
    assert run.screening.sites.judged.all()
    assert not [details for event, details in way.events if event in ("total not opened", "set aside")]
    assert all(bool(ties(way, n).isfinite().all()) for n in NAMES)
    assert [bool(answer_of(way, n).isnan().all()) for n in NAMES] == [n == "va" for n in NAMES]


def test_too_few_in_the_scale_are_waited_for(tmp_path: Path) -> None:
    """As in a round; and the scale is then that of all."""
    way, tries = Masked(tmp_path, agreement(rounds=1)), list[str]()

    def away(name: str, asked: Message) -> bool:
        gone = asked.kind == "standardise" and name in ("va", "hungarian") and len(tries) < 20
        tries.extend([name] * gone)
        return gone

    way.away = away
    way.conduct(quorum=3)
    waits = [details for event, details in way.events if event == "waiting"]
    assert waits
    assert waits[-1]["missing"].keys() <= {"va", "hungarian"}
    assert not [details for event, details in way.events if event == "not in the scale"]


def test_where_too_few_can_answer_the_study_ends_in_words(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=1))
    for name in ("va", "hungarian"):
        real = way.sites[name].answer

        def broken(asked: Message, real: Any = real) -> Message:
            return Message("error", {"text": "broken"}) if asked.kind == "standardise" else real(asked)

        way.sites[name].answer = broken  # type: ignore[method-assign]
    with pytest.raises(VitrailError, match="the study cannot go on"):
        way.conduct(quorum=3)


@pytest.mark.parametrize("leg", ["total", "open"])
def test_too_few_in_the_screening_leave_the_total_closed(leg: str, tmp_path: Path) -> None:
    """Nothing is judged that rests on it, and the study goes on."""
    way = Masked(tmp_path, screened())
    way.away = silent_at(SCREENING, leg, "va", "hungarian")
    run = way.conduct(quorum=3)
    assert run.screening is not None
    assert run.screening.sites.judged.all()
    assert len([details for event, details in way.events if event == "total not opened"]) == 1
    assert all(bool(ties(way, n).isnan().all()) for n in NAMES)
    assert not [details for event, details in way.events if event == "set aside"]


@pytest.mark.parametrize("leg", ["keys", "total", "open"])
def test_a_site_with_errors_in_the_total_trains_all_the_same(leg: str, tmp_path: Path) -> None:
    way = Masked(tmp_path, screened())
    real = way.sites["va"].answer

    def broken(asked: Message) -> Message:
        fails = purpose_of(asked) == SCREENING and leg_of(asked) == leg
        return Message("error", {"text": "broken"}) if fails else real(asked)

    way.sites["va"].answer = broken  # type: ignore[method-assign]
    run = way.conduct(quorum=3, deadline=60.0)
    assert run.screening is not None
    assert run.screening.sites.judged.all()
    assert [n for n, asked, _ in way.said if asked.kind == "round" and n == "va"]
    assert not [details for event, details in way.events if event == "total not opened"]


@pytest.mark.parametrize("purpose", [SCALE, SCREENING])
def test_a_coordinator_that_is_killed_opens_the_same_once(purpose: str, tmp_path: Path) -> None:
    """At every leg, and a site starts anew each time: no list changes, and no answer."""
    way, killed = Masked(tmp_path, screened()), set[str]()
    real = way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Any:
        answers = real(questions, deadline)
        legs = {leg_of(q) for q in questions.values() if purpose_of(q) == purpose}
        if legs and not legs <= killed:
            killed.update(legs)
            way.sites["va"] = way.fresh("va")
            raise KilledError
        return answers

    way.ask = ask  # type: ignore[method-assign]
    for _ in range(len(LEGS[purpose])):
        try:
            way.conduct(quorum=4)
            break
        except KilledError:
            continue
    assert killed == set(LEGS[purpose]) - {"ring"}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    for leg in sorted(killed):
        for name in NAMES:
            packed = {m.pack() for n, a, m in way.said if n == name and leg_of(a) == leg and purpose_of(a) == purpose}
            assert len(packed) == 1, (name, leg)


@pytest.mark.parametrize(
    ("leg", "word", "lie"),
    [
        ("keys", "key", "zz"),
        ("keys", "key", "signed"),  # a key with which every partner has the same secret
        ("keys", "signature", "00" * 64),
        ("open", "shares", {"cleveland": "zz"}),
        ("open", "next", {"key": "00" * 32, "mark": "00" * 32, "signature": "", "sealed": {}}),
    ],
)
def test_a_site_that_lies_of_its_keys_stops_nobody(leg: str, word: str, lie: Any, tmp_path: Path) -> None:
    """In the scale and in every round: it is left out, and no other site has to refuse anything."""
    way, until = Masked(tmp_path, agreement(rounds=2)), time.monotonic() + 60.0
    real = way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Responses:
        answers = real(questions, deadline)
        said = answers.answers.get("va")
        if said is not None and leg_of(questions["va"]) == leg and said.words[word]:
            words = {**said.words, word: lie}
            if lie == "signed":
                sums, asked = way.sites["va"]._sums, questions["va"].words
                terms = terms_of(way.agreed, RUN, read_name(way.agreed, asked))
                text = signed_text(terms, "va", asked["names"], bytes(32), bytes.fromhex(words["mark"]))
                words |= {"key": "00" * 32, "signature": sums._signer().sign(text).hex()}
            answers.answers["va"] = said._replace(words=words)
        assert time.monotonic() < until, "it asks for ever"
        return answers

    way.ask = ask  # type: ignore[method-assign]
    way.conduct(quorum=3)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    assert not [details for event, details in way.events if event in ("set aside", "sum not opened")]
    assert {details["site"] for event, details in way.events if event == "trouble"} <= {"va"}


def test_a_total_that_was_told_stays(tmp_path: Path) -> None:
    """The coordinator is killed when some sites know what the total is; then too few are left to open it again."""
    way, lost = Masked(tmp_path, screened()), list[str]()

    def away(name: str, asked: Message) -> bool:
        if leg_of(asked) == "ties" and not lost and name == "va":
            lost.append(name)
            raise KilledError
        return bool(lost) and purpose_of(asked) == SCREENING

    way.away = away
    real = way.ask

    def one_by_one(questions: dict[str, Message], deadline: float) -> Any:
        answers = Responses({}, {})
        for name, question in questions.items():
            part = real({name: question}, deadline)
            answers.answers.update(part.answers)
            answers.trouble.update(part.trouble)
        return answers

    way.ask = one_by_one  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    run = way.conduct(quorum=4)
    assert run.screening is not None
    assert run.screening.sites["why not"].tolist() == [""] * 4
    assert all(bool(ties(way, n).isfinite().all()) for n in NAMES)


def test_a_site_forgets_no_sum_by_being_asked_for_later_ones(tmp_path: Path) -> None:
    """Keys for so many rounds that the scale's folder is deleted; the same numbers are then in no second sum."""
    way = Masked(tmp_path, agreement(rounds=12))
    way.conduct(quorum=4)
    attack = SumAttacker(way, SumName(SCALE), "standardise", {"step": 1})
    assert not folder(attack, "va").exists()
    with pytest.raises(VitrailError, match="further back than this process remembers"):
        attack.keys(NAMES, ["va"])
    with pytest.raises(VitrailError, match="further back than this process remembers"):
        attack.report("va", {})


# a coordinator that means harm


def attacker(
    place: Path, purpose: str, agreed: Agreement | None = None, frames: dict[str, pd.DataFrame] = FRAMES
) -> SumAttacker:
    """Asks for a sum of the study; of a screening, after the counts."""
    way = Masked(place, agreed or screened(), frames)
    if purpose == SCALE:
        return SumAttacker(way, SumName(SCALE), "standardise", {"step": 1})
    way.away = stop_at_total
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    return SumAttacker(way, SumName(SCREENING), "screen", {"leg": "total"})


def stop_at_total(name: str, asked: Message) -> bool:
    if purpose_of(asked) == SCREENING:
        raise KilledError
    return False


def transcript(attack: SumAttacker) -> str:
    if attack.name.purpose == SCALE:
        return ""
    return transcript_of({k: v.numpy() for k, v in counts_question(attack.way).items()})


def counts_question(way: Masked) -> dict[str, torch.Tensor]:
    return next(a.tensors for _, a, _ in way.said if leg_of(a) == "counts")


def own(attack: SumAttacker, site: str) -> np.ndarray:
    """Some numbers that the site adds: those nobody else may see."""
    here = attack.way.sites[site]
    if attack.name.purpose == SCALE:
        rows = here.rows.iloc[here.splits[site][0]]
        return np.array([rows["age"].sum(), (rows["age"] ** 2).sum(), rows["age"].notna().sum()])
    from safetensors.numpy import load

    return np.asarray(load((here.home / PLACE / SUMMED).read_bytes())["products"]).ravel()


def numbers(attack: SumAttacker, total: Any) -> np.ndarray:
    """The same of a sum that was opened."""
    if attack.name.purpose == SCALE:
        first, squares = (float(from_limbs(total[k])[0]) for k in ("total", "squares"))
        return np.array([first, squares, total["rows"][0]])
    return np.asarray(total["products"]).ravel()


def folder(attack: SumAttacker, site: str) -> Path:
    """Where the site remembers that sum."""
    name = "-".join(f"{n:06d}" for n in attack.name.order(attack.way.agreed))
    return attack.way.root / "sites" / site / RUN / "sums" / name


@pytest.mark.parametrize("purpose", [SCALE, SCREENING])
def test_the_same_numbers_are_added_to_one_list(purpose: str, tmp_path: Path) -> None:
    """The coordinator says that va was lost, and asks the others again: the difference would be what va has."""
    attack = attacker(tmp_path, purpose)
    whole = attack.total(NAMES, transcript(attack))
    for name in LESS:
        for site in (attack.way.sites[name], attack.way.fresh(name)):  # nor after a restart
            attack.way.sites[name] = site
            with pytest.raises(VitrailError, match="to the sum of another list of sites"):
                attack.keys(LESS, [name])
            drawn = {n: dropout_tolerant.SumKeys(bytes([i]) * 32, bytes(32), b"", {}) for i, n in enumerate(LESS)}
            with pytest.raises(VitrailError, match="asked before in this run with other contents"):
                attack.report(name, drawn)
    for name in LESS:  # the control: sites that forget
        shutil.rmtree(folder(attack, name))
        (folder(attack, name).parent / "presence.json").unlink(missing_ok=True)
    rest = attack.total(LESS, transcript(attack))
    difference = numbers(attack, whole) - numbers(attack, rest)
    np.testing.assert_allclose(difference, own(attack, "va"), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("purpose", [SCALE, SCREENING])
def test_who_reported_and_is_called_silent_cannot_be_read(purpose: str, tmp_path: Path) -> None:
    """The coordinator has va's report, and asks its neighbours for both kinds of shares: as of one who reported, and as
    of one who fell silent."""
    attack = attacker(tmp_path, purpose)
    drawn = attack.keys(NAMES)
    reports = attack.reports(drawn)
    silent = {n: attack.shares(n, drawn, LESS, reports) for n in LESS}  # which opens the sum of the others
    rest = attack.opening(NAMES, drawn, LESS, transcript(attack))
    reported = np.sum([attack.flat(reports[n]) for n in LESS], axis=0, dtype=np.uint64)
    opened = numbers(attack, rest.open(reported, silent))
    np.testing.assert_allclose(opened, sum(own(attack, n) for n in LESS), rtol=1e-6, atol=1e-4)
    for name in LESS:
        attack.way.sites[name] = attack.way.fresh(name)
        with pytest.raises(VitrailError, match="opening: it was asked before in this run"):
            attack.shares(name, drawn, NAMES, reports)
    mine = attack.shares("va", drawn, NAMES, reports)
    assert "va" in attack.opening(NAMES, drawn, NAMES).lacks({"va": mine}), "its own share alone tells nothing"
    for name in LESS:  # the control: sites that forget what they opened
        (folder(attack, name) / f"{OPENING}.said").unlink()
    both = {n: attack.shares(n, drawn, NAMES, reports) for n in LESS}
    read = alone(attack, drawn, reports["va"], silent, both)
    np.testing.assert_allclose(read, own(attack, "va"), rtol=1e-6, atol=1e-4)


def alone(attack: SumAttacker, drawn: Any, report: Message, of_silent: Any, of_reporters: Any) -> np.ndarray:
    """va's numbers, from its report and both of its secrets."""
    key = attack.opening(NAMES, drawn, LESS)._secret("va", of_silent)
    mask = attack.opening(NAMES, drawn, NAMES)._secret("va", of_reporters)
    bare = attack.flat(report) - self_stream(mask, attack.terms)
    private = X25519PrivateKey.from_private_bytes(key)
    for other in LESS:
        context = "va", other, drawn[other].key, attack.terms, NAMES, transcript(attack)
        bare = bare - dropout_tolerant._towards(np.zeros_like(bare), private, *context)
    parts = attack.terms.apart(bare)
    return numbers(
        attack, {k: v.view(np.int64) / 2.0 ** attack.terms.places(k) for k, v in parts.items() if k != "zeros"}
    )


def test_shares_of_one_sum_are_worth_nothing_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screening is opened with va among those who reported. Then the coordinator opens another sum without va, and
    puts the screening's sealed shares in the place of that sum's, to be told va's key of the screening as well."""

    def replay(place: Path) -> tuple[SumAttacker, Callable[[], np.ndarray]]:
        first = attacker(place, SCREENING)
        drawn = first.keys(NAMES)
        reports = first.reports(drawn)
        of_reporters = {n: first.shares(n, drawn, NAMES, reports) for n in NAMES}
        word, name = {"step": 1}, SumName(SCALE)
        for site in NAMES:  # this run's scale was made: as if it had not been
            shutil.rmtree(folder(SumAttacker(first.way, name, "standardise", word), site))
        second = SumAttacker(first.way, name, "standardise", word)
        others = second.keys(NAMES)
        told = second.reports(others, LESS)

        def read() -> np.ndarray:
            sealed = {n: {"va": drawn["va"].sealed[n]} for n in LESS}
            of_silent = {n: second.shares(n, others, LESS, told, sealed[n]) for n in LESS}
            return alone(first, drawn, reports["va"], of_silent, of_reporters)

        return first, read

    _, read = replay(tmp_path / "bound")
    with pytest.raises(VitrailError, match="not sealed with the expected key"):
        read()
    real = dropout_tolerant._purpose
    monkeypatch.setattr(
        dropout_tolerant,
        "_purpose",
        lambda terms, *words: ("any sum", *words) if words[0] == "share" else real(terms, *words),
    )
    first, read = replay(tmp_path / "free")  # the control: keys for shares that are for any sum
    np.testing.assert_allclose(read(), own(first, "va"), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("purpose", [SCALE, SCREENING])
@pytest.mark.parametrize("names", [["va"], ["cleveland", "va"], LESS])
def test_a_list_of_few_is_refused_at_every_leg(names: list[str], purpose: str, tmp_path: Path) -> None:
    """With one site in it, the sum would be that site's numbers; and of three without va, va answers nothing."""
    attack = attacker(tmp_path, purpose)
    with pytest.raises(VitrailError, match=r"at least \d are required|this site is not among them"):
        attack.keys(names, ["va"])
    drawn = attack.keys(NAMES)
    with pytest.raises(VitrailError, match="At least 3 are needed, this one among them"):
        attack.report("va", {n: drawn[n] for n in names})
    reports = attack.reports(drawn)
    with pytest.raises(VitrailError, match="At least 3 are needed, this one among them"):
        attack.shares("va", drawn, names, reports)
    following = {**attack.name._asdict(), "names": names, "ring": {}}
    with pytest.raises(VitrailError, match=r"another list of sites|this one among them|this site is not among them"):
        attack.shares("va", drawn, NAMES, reports, following=following)
    assert attack.shares("va", drawn, NAMES, reports), "the control: the list of all"


def test_who_is_asked_about_other_columns_is_not_added_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """va is asked about two columns that it has, the others about two in which they have nothing: the sum would be va's
    own products. The control: without the counts in what sites sign, it is."""
    monkeypatch.setattr("vitrail.quality.screening.schema.WIDEST", 2)
    empty = {"chol": np.nan, "trestbps": np.nan}
    frames = {n: frame if n == "va" else frame.assign(**empty) for n, frame in FRAMES.items()}

    def asked_apart(place: Path) -> SumAttacker:
        attack = attacker(place, SCREENING, screened.__wrapped__(), frames)
        schema, question = ScreeningSchema(attack.way.agreed.study), counts_question(attack.way)
        names = [schema.columns[c] for c in schema.column[schema.inputs]]
        for site in NAMES:
            home = attack.way.sites[site].home / PLACE
            for file in ("counts.said", ASKED, SUMMED):
                (home / file).unlink()
            columns = ("age", "thalach") if site == "va" else empty
            chosen = torch.tensor(sorted(names.index(column) for column in columns), dtype=torch.float64)
            attack.ask(site, Message("screen", {"leg": "counts"}, {**question, "chosen": chosen}))
        return attack

    attack = asked_apart(tmp_path / "bound")
    drawn = attack.keys(NAMES)
    reports = attack.reports(drawn)
    for name, other in (("cleveland", "va"), ("va", "cleveland")):
        with pytest.raises(VitrailError, match=f"{other}: it did not sign this"):
            attack.shares(name, drawn, [name, other, "hungarian", "switzerland"], reports)
    monkeypatch.setattr("vitrail.deploy.screening.site.transcript_of", lambda tensors: "")
    attack = asked_apart(tmp_path / "free")
    read = attack.total(NAMES)["products"][:2, :2]
    mine = own(attack, "va").reshape(3, 3)[:2, :2]
    assert mine[0, 0] > 10
    np.testing.assert_allclose(read, mine, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"purpose": "everything"},
        {"purpose": ""},
        {"purpose": SCALE, "stage": 1},
        {"purpose": SCALE, "round": 1},
        {"purpose": SCREENING, "place": 1},
        {"purpose": "round", "stage": 9},
    ],
)
def test_sums_that_nobody_agreed_on_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    attack = attacker(tmp_path, SCREENING)
    words = {"leg": "keys", **SumName(SCALE)._asdict(), "names": NAMES, "ring": {}}
    with pytest.raises(VitrailError, match="there is no"):
        attack.ask("va", Message("mask", words | changes))


def test_a_study_without_masks_has_no_masked_scale(tmp_path: Path) -> None:
    way = Masked(tmp_path, screened("plain"))
    attack = SumAttacker(way, SumName(SCALE), "standardise", {"step": 1})
    with pytest.raises(VitrailError, match="there is no 'scale' in the agreement"):
        attack.keys(NAMES)
    bare = Masked(tmp_path / "bare", Agreement.of(screened("plain").study.with_changes(screen={"ask": False}), None, 4))
    with pytest.raises(VitrailError, match="there is no 'ring' in the agreement"):
        SumAttacker(bare, SumName(SCALE), "standardise", {"step": 1})


def test_people_at_the_sites_are_told_who_is_not_in_the_sum(tmp_path: Path) -> None:
    way = Masked(tmp_path, screened())
    way.away = silent_at(SCALE, "standardise", "va")
    way.conduct(quorum=3)
    first, second, *_ = way.sites["cleveland"].notices
    assert first == "Common scale: adds to the sum of 3 of 4 sites; va is missing (change 1 of at most 12 in a run)."
    assert second == "Screening: adds to the sum of all 4 sites again (change 2 of at most 12 in a run)."
    assert not [text for text in way.sites["va"].notices if "Common scale" in text]
