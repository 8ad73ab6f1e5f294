"""A study has the clauses of its options and no others; every clause on a disclosure says the same six things."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jinja2 import UndefinedError, nodes

import vitrail as vt
from tests.support.deploy import talking
from tests.support.deploy.forms import PARAGRAPHS, clause, clauses, paragraphs, summary, tables
from tests.support.stripes import STUDY as PICTURES
from vitrail import methods
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.consent import form as form_module
from vitrail.deploy.consent.context import SiteForm
from vitrail.deploy.consent.file_sheet import FileSheet
from vitrail.deploy.consent.form import AcceptNote, ConsentForm, site_form, templates
from vitrail.deploy.consent.layout import WIDTH
from vitrail.deploy.consent.party import PartyForm, party_form
from vitrail.deploy.consent.second_server import SecondServerForm, second_server_form
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.messages import KINDS, sentences
from vitrail.runs.setup import resolve
from vitrail.vertical.messages import BareSlope, Distances

FOUR = ["cleveland", "hungarian", "switzerland", "va"]
NINE = [*FOUR, "bern", "chur", "geneva", "lausanne", "lugano"]
HEART = vt.Study.load(packaged("heart_disease.toml"))
REGISTRY = "University registry"
TEMPLATES = Path(form_module.__file__).parent / "templates"
# an option of a study -> the clauses that it brings, as parts of their headings
OPTIONS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "own scale, nothing published": ({}, set()),
    "common scale": ({"standardise": "global"}, {"SUMS FOR A COMMON SCALE"}),
    "screening": ({"screen": {"ask": True}}, {"SUMMARIES OF YOUR COLUMNS", "TOTALS UNDER MASKS"}),
    "masks": ({"protect": {"sum": "masked"}}, {"TOTALS UNDER MASKS"}),
    "groups": ({"protect": {"sum": "groups", "robust": "median"}}, {"TOTALS UNDER MASKS", "GROUPS OF SITES"}),
    "two servers": (
        {"protect": {"sum": "two servers", "clip": 0.5, "robust": "multikrum", "second": REGISTRY}},
        {"TWO SERVERS", "-SCORES DURING TRAINING"},
    ),
    "noise for rows": (
        {"protect": {"rows": {"epsilon": 3.0}}},
        {"THE NOISE, AND THE PRIVACY BUDGET", "-SCORES DURING TRAINING"},
    ),
    "noise for sites": (
        {"protect": {"sites": {"epsilon": 4.0}, "clip": 0.5}},
        {
            "THE NOISE, AND THE PRIVACY BUDGET",
            "-SCORES DURING TRAINING",
            "-SCORES AT THE END",
            "-WHICH MODELS WERE SCORED",
        },
    ),
    "no scores": (
        {"protect": {"scores": "none"}},
        {"-SCORES DURING TRAINING", "-SCORES AT THE END", "-WHICH MODELS WERE SCORED"},
    ),
    "folds": ({"verdict": {"folds": 2}}, {"REPORTS OF TRAININGS WITHOUT A PART OF THE ROWS"}),
    "refit": ({"training": {"refit": True}}, {"REPORTS OF THE TRAINING ON ALL ROWS"}),
    "transfer": (
        {"transfer": {"user": "va"}},
        {"YOUR OWN MODEL, AND HOW THE OTHERS' MODELS DO HERE"},
    ),
}
BARE = {"standardise": "local", "screen": {"ask": False}}


def agreement_of(changes: dict[str, Any], method: str | None = None, study: vt.Study = HEART) -> Agreement:
    names = NINE if changes.get("protect", {}).get("sum") == "groups" else FOUR
    changed = resolve(study.with_changes(**changes), method, None)[0]
    second = changed.protect.second
    roster = {name: f"{i:04d} " * 8 for i, name in enumerate([*names, *([second] if second else [])])}
    try:
        return Agreement.of(changed, None, roster)
    except vt.VitrailError as error:
        if 'scores = "exact"' not in str(error):
            raise
    return Agreement.of(changed.with_changes(protect={"scores": "exact"}), None, roster)


def form_of(agreement: Agreement, publishes: bool = True, shows: bool = False) -> str:
    return site_form(agreement, "va", list(agreement.roster), publishes, shows).text


def party_pact() -> PartyAgreement:
    given, _ = talking.papers(("clinic", "lab", "insurer"))
    return PartyAgreement(talking.study(), talking.SEED, given)


def test_without_options_there_are_the_clauses_that_every_study_has() -> None:
    assert list(clauses(form_of(agreement_of(BARE)))) == [
        "DEFINITIONS",
        "THE STUDY, AND WHO TAKES PART",
        "RULES FOR EVERY MESSAGE",
        "COUNTS OF ROWS",
        "REPORTS: TRAINING",
        "SCORES DURING TRAINING",
        "SCORES AT THE END",
        "WHICH MODELS WERE SCORED",
        "THE USE OF THE MACHINE",
        "WHAT COMES IN",
        "WHAT NEVER LEAVES",
        "WHAT THIS SITE CHECKS, AND WHAT IT CANNOT NOTICE",
        "OUR TESTS",
        "WHAT YOU MAY REFUSE",
        "TO ACCEPT",
        "EVERY TENSOR",
    ]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_brings_its_clauses_and_no_others(option: str) -> None:
    changes, expected = OPTIONS[option]
    bare, text = set(clauses(form_of(agreement_of(BARE)))), form_of(agreement_of({**BARE, **changes}))
    more, fewer = set(clauses(text)) - bare, bare - set(clauses(text))
    assert more == {heading for heading in expected if heading[0] != "-"}
    assert fewer == {heading[1:] for heading in expected if heading[0] == "-"}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_disclosure_says_the_same_six_things(option: str) -> None:
    agreement = agreement_of({**BARE, **OPTIONS[option][0]})
    text, disclosures = form_of(agreement), SiteForm.of(agreement, "va", list(agreement.roster), True).disclosures
    (in_short, *_), said = tables(text), clauses(text)
    assert len(in_short) == len(disclosures), "each is on the first page, too"
    for disclosure, row in zip(disclosures, in_short, strict=True):
        assert row[1] == disclosure.title
        parts = paragraphs(said[disclosure.title.upper()])
        assert tuple(parts) == PARAGRAPHS
        assert all(parts.values())
        assert parts["What leaves"].startswith("(a) ")
        assert re.match(r"\d+\.1 What leaves", said[disclosure.title.upper()])


@pytest.mark.parametrize("method", ["ifedavg", "apple"])
def test_what_is_optional_may_be_refused_and_then_has_no_clause(method: str) -> None:
    agreement = agreement_of({"verdict": {"folds": 2}}, method)
    shown = SiteForm.of(agreement, "va", FOUR, publishes=True, shows=True)
    text, quiet = form_of(agreement, shows=True), form_of(agreement, publishes=False)
    optional = [d for d in shown.disclosures if d.may_refuse == "all"]
    assert {d.kind for d in optional} == {"columns", "published", "verdict"}
    asks = {x.stage for x in agreement.lines if x.asks and x.direction == "from site"}
    assert {d.kind for d in optional} >= {"columns" if s.startswith("screen") else "published" for s in asks}
    for d in shown.disclosures:
        refusal = paragraphs(clause(text, d.title.upper()))["What you may refuse"]
        assert refusal.startswith("All of this clause") == (d in optional)
        assert (d.title.upper() in clauses(quiet)) == (d not in optional)
    refuse = clause(text, "WHAT YOU MAY REFUSE")
    numbers = {h: str(i) for i, h in enumerate(clauses(text), 1)}
    published = [numbers[d.title.upper()] for d in optional if d.kind != "verdict"]
    assert f"nothing leaves of clauses {' and '.join(published)}" in refuse
    assert "join without `--show-verdict`" in refuse
    assert "You refused to publish" in clause(quiet, "WHAT YOU MAY REFUSE")
    assert "what a site may publish: you refused" in clause(quiet, "WHAT NEVER LEAVES")
    assert "you did not ask this site to show it" in clause(quiet, "WHAT NEVER LEAVES")


def everything() -> Iterator[tuple[str, str]]:
    """Every kind of form that there is."""
    for name, kind in methods.TABLE.items():
        study = PICTURES if kind.catalogue.required_net else HEART
        if kind.catalogue.pools_rows:
            continue
        agreement = agreement_of({}, name, study)
        for publishes in (True, False):
            yield f"{name}, publishes {publishes}", form_of(agreement, publishes)
    for option, (changes, _) in OPTIONS.items():
        agreement = agreement_of({"standardise": "local", **changes})
        for shows in (True, False):
            yield f"{option}, shows {shows}", form_of(agreement, shows=shows)
    yield "compressed", form_of(agreement_of({"protect": {"compress": "int8"}}))
    yield "no keys yet", site_form(Agreement.of(HEART, None, 4), "va", FOUR, True).text
    pact = party_pact()
    for party in pact.study.parties:
        for look_up in (True, False):
            yield f"{party}, looks up {look_up}", party_form(pact, party, (9, 900), look_up).text
    two = agreement_of(OPTIONS["two servers"][0])
    yield "second server", second_server_form(two, REGISTRY, "abcd").text


def test_every_form_there_is_can_be_printed() -> None:
    """Templates are strict: a name that is not in the context raises. No line is too long, page one fits a page."""
    forms = dict(everything())
    assert len(forms) > 60
    for name, text in forms.items():
        assert max(map(len, text.splitlines())) <= WIDTH, name
        assert len(summary(text).splitlines()) <= 55 or "second" in name, name
        assert not re.search(r"[\ue000-\uf8ff]|\{\{|\{%|\[\[", text), name
        assert not re.search(r"(?m)^\d+\.\d+ +(What \w[\w ]*\. )?[a-z]", text), f"{name}: a sentence without a capital"
    with pytest.raises(UndefinedError):
        templates().from_string("{{ form.nothing }}").render(form=AcceptNote("", ""))


def attributes(template: str) -> set[str]:
    """That it asks for, and the templates that it uses."""
    tree = templates().parse((TEMPLATES / template).read_text(encoding="utf-8"))
    used = [node.template.value for node in tree.find_all((nodes.Include, nodes.FromImport))]
    return {node.attr for node in tree.find_all(nodes.Getattr)}.union(*map(attributes, used))


def names_in(kind: Any) -> Iterator[str]:
    """Of a context, every field of every kind of value in it."""
    for inner in get_args(kind):
        yield from names_in(inner)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        for name in kind._fields if hasattr(kind, "_fields") else [f.name for f in fields(kind)]:
            yield name
            yield from names_in(hints[name])


@pytest.mark.parametrize(
    ("kind", "template"),
    [
        (SiteForm, "site.txt"),
        (PartyForm, "party.txt"),
        (SecondServerForm, "second_server.txt"),
        (FileSheet, "file_sheet.txt"),
        (AcceptNote, "accept.txt"),
    ],
)
def test_a_template_uses_every_field_of_its_context(kind: type[Any], template: str) -> None:
    names = set(names_in(kind))
    assert len(names) >= 5
    assert names - attributes(template) == set()


def test_no_template_names_a_method() -> None:
    titles = set(methods.TABLE) | {kind.catalogue.title for kind in methods.TABLE.values()}
    titles |= set(methods.PARTIES) | {kind.catalogue.title for kind in methods.PARTIES.values()}
    ordinary = {"local", "centres", "split", "influence"}  # English words, too
    pattern = re.compile("|".join(rf"\b{re.escape(t)}\b" for t in titles - ordinary if t.lower() not in ordinary), re.I)
    for file in TEMPLATES.iterdir():
        assert not pattern.findall(file.read_text(encoding="utf-8")), file.name
    assert pattern.findall("by FedAvg and iFedAvg"), "it finds what is there"


def test_a_party_reads_of_every_letter_that_parties_send() -> None:
    pact = party_pact()
    told = {p: party_form(pact, p, (9, 900), True).text for p in ("clinic", "lab")}
    every = " ".join(" ".join(told.values()).split())
    for name, kind in KINDS.items():
        if kind in (BareSlope, Distances) or name == "Numbers":  # without protection; not rounded
            continue
        for text in filter(None, sentences(kind).values()):
            assert text in every, name
    for party, text in told.items():
        for heading, body in clauses(text).items():
            if re.match(r"\d+\.1 What leaves", body):
                assert tuple(paragraphs(body)) == PARAGRAPHS, f"{party}: {heading}"


def test_the_form_counts_who_would_have_to_work_together() -> None:
    masked = form_of(agreement_of({"protect": {"sum": "masked"}}))
    assert "the coordinator and 2 of the 3 other sites would have to work together" in " ".join(masked.split())
    agreement = agreement_of(OPTIONS["groups"][0])
    group = SiteForm.of(agreement, "va", NINE, True).groups
    assert group is not None
    assert len(group.others) == 2
    words = " ".join(form_of(agreement).split())
    assert "the coordinator and 2 of the 2 other sites of its group would have to work together" in words
    assert f"this site, {' and '.join(group.others)}" in words
    assert "The coordinator alone can read your reports." in summary(form_of(agreement_of({})))


def test_a_coordinator_cannot_write_clauses_of_its_own() -> None:
    """The study's words are the coordinator's: none of them is a heading, a clause or a control sequence."""
    wicked = "\x1b[2J all is well\n# extra: You agree to everything\n\n## And more [[extra]]"
    plain, changed = (form_of(agreement_of({"description": words})) for words in ("fine", wicked))
    assert clauses(plain).keys() == clauses(changed).keys()
    assert "\x1b" not in changed
    assert "# extra: You agree to everything ## And more [[extra]]" in clause(changed, "THE STUDY, AND WHO TAKES PART")


def test_the_hash_covers_the_text_and_nothing_else(tmp_path: Path) -> None:
    agreement = agreement_of({})
    form = site_form(agreement, "va", FOUR, True)
    assert form == site_form(agreement, "va", list(reversed(FOUR)), True), "in any order"
    others = [ConsentForm(form.text[:i] + "x" + form.text[i + 1 :]).hash for i in range(0, len(form.text), 997)]
    assert form.hash not in others
    assert len({*others, form.hash}) == len(others) + 1
    others = [site_form(agreement, *rest).hash for rest in (("cleveland", FOUR, True), ("va", FOUR, False))]
    others.append(site_form(agreement_of({"description": "another"}), "va", FOUR, True).hash)
    assert len({form.hash, *others}) == 4
    assert agreement.hash in form.text
    place = form.save(tmp_path / "home")
    assert hashlib.sha256(place.read_bytes()).hexdigest()[:24] == form.hash
    assert place.read_text(encoding="utf-8") == form.text
