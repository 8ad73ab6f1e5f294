"""Every method, stage, fact, message field and kept tensor under another name: nothing changes but the names.

Consent once hung on a stage called "publish": renamed, a site that had refused published. Here all of it is renamed at
run time, and the command line, a page, a consent form and a study between machines say and do the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from tests.support.deploy.federation import Here
from vitrail.cli import app
from vitrail.core.declarations import WireRules
from vitrail.core.exchange import Method
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.private_randomness import SECRET
from vitrail.deploy.site.site import Site
from vitrail.methods import TABLE
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

Q = "q_"  # before every name
RUN = "0123456789abcdef"
OURS = [name for name, kind in TABLE.items() if not kind.catalogue.required_net]  # columns
STUDY = vt.Study.load(packaged("heart_disease.toml"))  # it names a method
ROWS = {name: frame.head(60) for name, frame in heart_disease().items()}  # what has a name has it in any row
SMALL = {"training": {"rounds": 2}, "network": {"kind": "linear"}}


@cache
def other(kind: type) -> type:
    """A message or state type whose fields have other names, with the same sentences."""
    hints = get_type_hints(kind, include_extras=True)
    made = NamedTuple(kind.__name__, [(Q + f, hints[f]) for f in kind._fields])  # type: ignore[misc,attr-defined]
    made.first = kind  # type: ignore[attr-defined]
    return made


def there(tree: Any) -> Any:
    """A message or state under other names."""
    if not hasattr(tree, "_fields") or hasattr(type(tree), "first"):
        return tree
    return other(type(tree))(*(there(v) for v in tree))


def back(tree: Any) -> Any:
    if not hasattr(type(tree), "first"):
        return tree
    return type(tree).first(*(back(v) for v in tree))


@cache
def renamed(kind: type) -> type:
    """The same exchange or method, seen from outside under other names."""

    class Renamed(kind):  # type: ignore[misc, valid-type]
        @property
        def wire(self) -> WireRules:
            """With the names of its fields as they are seen from outside."""
            wire = super().wire
            names = {k: {Q + n for n in v} for k, v in vars(wire).items() if isinstance(v, Set)}
            return dataclasses.replace(wire, **names)

        def invite(self, task: Any, coord: Any, roster: Any) -> Any:
            return super().invite(task, back(coord), roster)

        def send(self, task: Any, coord: Any, roster: Any) -> Any:
            return there(super().send(task, back(coord), roster))

        def begin(self, site: Any, state: Any, down: Any) -> Any:
            return super().begin(site, back(state), back(down))

        def report(self, site: Any, state: Any, work: Any, down: Any) -> Any:
            kept, up = super().report(site, back(state), work, back(down))
            return there(kept), there(up)

        def merge(self, task: Any, coord: Any, up: Any, roster: Any) -> Any:
            coord, facts = super().merge(task, back(coord), back(up), roster)
            return there(coord), {Q + k: v for k, v in facts.items()}

        def settle(self, task: Any, state: Any, down: Any) -> Any:
            return there(super().settle(task, back(state), back(down)))

    if issubclass(kind, Method):

        class Whole(Renamed):
            def state(self, task: Any, sites: int) -> Any:
                return there(super().state(task, sites))

            def coord(self, task: Any, sites: int) -> Any:
                return there(super().coord(task, sites))

            def shared(self, coord: Any) -> Any:
                return super().shared(back(coord))

            def models(self, task: Any, state: Any) -> Any:
                return super().models(task, back(state))

            def self_report(self, state: Any) -> Any:
                return super().self_report(back(state))

            def predict(self, task: Any, state: Any, x: Any) -> Any:
                return super().predict(task, back(state), x)

            def newcomer(self) -> Any:
                return wrapped(super().newcomer())

            def plan(self, rounds: int) -> Any:
                return tuple(
                    s._replace(name=Q + s.name, exchanges=tuple(map(wrapped, s.exchanges)))
                    for s in super().plan(rounds)
                )

        Whole.__module__ = kind.__module__
        return Whole
    return Renamed


def wrapped(exchange: Any) -> Any:
    if exchange is None or type(exchange).__qualname__.startswith("renamed."):
        return exchange
    given = {f.name: getattr(exchange, f.name) for f in dataclasses.fields(exchange)}
    return renamed(type(exchange))(**given)


@pytest.fixture
def other_names() -> Iterator[None]:
    """The table of methods, all of it renamed."""
    before = dict(TABLE)
    TABLE.clear()
    TABLE.update({Q + name: renamed(kind) for name, kind in before.items()})
    yield
    TABLE.clear()
    TABLE.update(before)


def plain(text: str) -> str:
    """Without what differs between two runs of the same: time, and the hash that names make up."""
    text = re.sub(r"[0-9a-f]{24}", "HASH", text.replace(Q, ""))
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "THEN", text)
    text = re.sub(r"<td>[\d.,]+ (s|min|h)</td>", "TIME", text)  # of a processor
    text = re.sub(r"[\d.,  ]+\s?(bytes|KB|MB)", "SIZE", text)  # names have a length
    return re.sub(r"\s+", " ", re.sub(r"[-─]{3,}", "", text))


def asks(method: str) -> bool:
    """Whether a site may refuse a part of it."""
    return any(ex.consent for stage in TABLE[method]().plan(1) for ex in stage.exchanges)


def said(folder: Path, methods: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the command line prints, and the pages that it writes."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "data").mkdir()
    for name, frame in ROWS.items():
        frame.to_csv(folder / "data" / f"{name}.csv", index=False)
    first = methods[0]
    study = STUDY.with_changes(**SMALL, method={"name": first})
    study.save("study.toml")
    out = {}

    def call(name: str, *words: str) -> None:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, f"{name}: {done.output}{done.exception!r}"
        out[name] = done.output.replace(str(folder), "")

    call("methods", "methods")
    for method in methods:
        call(f"wire {method}", "wire", method, "study.toml")
        refuse = ["--refuse", "va"] if asks(method) else []
        call(f"run {method}", "run", "study.toml", "--data", "data", "--out", method, "--method", method, *refuse)
        out[f"page of {method}"] = (folder / method / "report.html").read_text(encoding="utf-8")
    alone = [m for m in methods if TABLE[m].catalogue.alone or TABLE[m].catalogue.pools_rows or m == methods[2]]
    words = ["compare", "study.toml", "--data", "data", "--seeds", "1", "--folds", "2", "--workers", "1"]
    call("compare", *words, "--out", "compared", "--methods", ",".join(alone))
    out["page of the comparison"] = (folder / "compared" / "report.html").read_text(encoding="utf-8")
    return {k.replace(Q, ""): v for k, v in out.items()}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        return said(tmp_path_factory.mktemp("before") / "here", OURS, patch)


def test_the_command_line_and_pages_say_the_same(
    before: dict[str, str], other_names: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = said(tmp_path / "here", [Q + m for m in OURS], monkeypatch)
    assert after.keys() == before.keys()
    assert Q in after["wire fedavg"], "something was renamed"
    for name, text in before.items():
        assert plain(after[name]) == plain(text), name


def told(method: str, folder: Path) -> tuple[str, Any]:
    """The consent forms of a site that shows and of one that refuses; and the study run by messages."""
    screen = {"ask": method.removeprefix(Q) == "fedavg"}  # screening knows no method: once is enough
    protect = {"scores": "exact"}  # without masks some methods are refused otherwise
    study = STUDY.with_changes(**SMALL, method={"name": method}, screen=screen, protect=protect)
    agreed = Agreement.of(resolve(study, method, None)[0], None, 4)
    forms = [contract_text(agreed, "va", list(ROWS), shows) for shows in (True, False)]
    sites = {n: Site(n, frame, agreed, folder / n, publishes=n != "va") for n, frame in ROWS.items()}
    for name in sites:  # the same draws, whatever the method is called
        (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / name / SECRET).write_bytes(name.encode())
    run = conduct(
        SiteRequests(Here(sites), agreed, list(sites), RUN, 4, 60.0), Folder(folder / "run", resume=False), False
    )
    return "\n".join(forms), run


@pytest.mark.parametrize("method", [m for m in OURS if not TABLE[m].catalogue.pools_rows])
def test_between_machines_it_is_the_same(method: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    form, run = told(method, tmp_path / "one")
    paged = asks(method) or method == OURS[0]  # the others' pages are compared above, as one machine writes them
    page = render(page_of(run)) if paged else ""
    request.getfixturevalue("other_names")
    other_form, other_run = told(Q + method, tmp_path / "two")
    assert plain(other_form) == plain(form)
    assert plain(render(page_of(other_run)) if paged else "") == plain(page)
    key = ["stage", "round", "site", "split", "metric"]
    one, two = (r.history.sort_values(key, ignore_index=True) for r in (run, other_run))
    pdt.assert_frame_equal(one, two)
    for name, fact in run.facts.items():
        twin = other_run.facts[name if name in other_run.facts else Q + name]
        assert twin[1:] == fact[1:]
        torch.testing.assert_close(twin.value, fact.value, rtol=0, atol=0, equal_nan=True)
    if run.shift_table is not None:
        pdt.assert_frame_equal(run.shifts(), other_run.shifts())
        assert run.shifts()[run.shifts().site == "va"].value.isna().all(), "it refused"


def test_what_was_refused_stays_refused(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The defect this file is for, by the bytes: what a site that refused keeps is in no file of the coordinator's."""
    request.getfixturevalue("other_names")
    _, run = told(f"{Q}ifedavg", tmp_path)
    mine = json.dumps(sorted(p.name for p in (tmp_path / "va" / RUN).iterdir()))
    assert "model.safetensors" in mine
    from safetensors.torch import load_file

    layers = [v for k, v in load_file(tmp_path / "va" / RUN / "model.safetensors").items() if "input." in k]
    assert len(layers) == 2
    held = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    for layer in layers:
        assert layer.numpy().tobytes() not in held
    assert isinstance(run.shift_table, pd.DataFrame)
