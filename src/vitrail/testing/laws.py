"""The laws that every method keeps. Each raises AssertionError: which law is broken, on what, where and by how much."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.core.exchange import AnyExchange
from vitrail.core.facts import AGREED, SITES, Fact
from vitrail.core.tensors import flatten, map_tensors, unflatten
from vitrail.engine.contract import rehearse, spec_of
from vitrail.engine.rounds import Snapshot
from vitrail.privacy.guards import Guards
from vitrail.testing.federation import make_rows, worst
from vitrail.testing.numbers import NumberSearch
from vitrail.testing.trial import Merge, Trial, TrialMessage, TrialRun, axes_fit, come_and_go, kept, when

EXACT = 1e-12  # sums in another order
ADAM = 1e-9  # divides by a root to which rounding may be large
MASKED = 1e-6  # numbers are rounded before they are added up under masks
SEED = 1e-5  # by which another seed changes a model at least

Law = Callable[[Trial], None]


def law(check: Law) -> Law:
    """What goes wrong in it is said with its name and what it was tried on."""

    @functools.wraps(check)
    def tried(trial: Trial) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for tensors as small as these more only wait for each other
        try:
            check(trial)
        except Exception as error:
            what = str(error) if isinstance(error, _BrokenError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"{name_of(tried)}: {trial}: {what}") from error
        finally:
            torch.set_num_threads(threads)

    return tried


def name_of(law: Law) -> str:
    return law.__name__.replace("_", " ")


class _BrokenError(AssertionError):
    pass


def _hold(holds: bool, what: str) -> None:
    if not holds:
        raise _BrokenError(what)


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], within: float, what: str) -> None:
    size, where = worst(one, other)
    _hold(size <= within, f"{what} differs by {size:.3g}, in {where}")


def _rounding(trial: Trial) -> float:
    return EXACT if trial.optimiser == "sgd" else ADAM


@law
def only_declared_tensors_travel(trial: Trial) -> None:
    """The contract is traced on rows of zeros; the messages of a real run have exactly its names, shapes and types."""
    run = trial.whole
    seen = set()
    for m in run.messages:
        contract = run.engine.contracts[m.stage][m.place]
        declared, got = contract.down if m.way == "to site" else contract.up, spec_of(m.message)
        for name in sorted(declared.keys() | got.keys()):
            where = f"tensor {name} {m.way} in stage {contract.stage} was declared as"
            _hold(declared.get(name) == got.get(name), f"{where} {declared.get(name)}, but came as {got.get(name)}")
        seen.add((m.stage, m.place, m.way))
    for s, stage in enumerate(run.engine.stages):
        for place in range(len(stage.exchanges)):
            for way in ("to site", "from site") if stage.times(place) else ():
                _hold((s, place, way) in seen, f"nothing was sent {way} in stage {stage.name}, exchange {place + 1}")


@law
def engines_agree(trial: Trial) -> None:
    """All sites at once, one after the other or in chunks: the same models and facts; also where sites are absent."""
    for whole, absent in ((trial.whole, None), (trial.ragged, come_and_go(trial.sites))):
        for chunk in (1, 2):
            got = trial.run(absent=absent, chunk=chunk)
            away = "" if absent is None else ", with sites absent"
            _same(whole.results, got.results, _rounding(trial), f"chunks of {chunk} against all sites at once{away}")


@law
def permuting_sites_permutes_results(trial: Trial) -> None:
    order = {5: (1, 0, 3, 2, 4), 3: (1, 0, 2)}[len(trial.rows)]  # a site may not come before a larger one
    other = trial.run([trial.rows[i] for i in order])
    _same(trial.whole.results, other.results, _rounding(trial), f"the federation with its sites in the order {order}")


@law
def identical_sites_get_identical_models(trial: Trial) -> None:
    """Batches of all rows and no dropout, so that nothing is left to chance. Of sites that are drawn by lot only those
    that were asked equally often and at the same times are compared."""
    _, x, y, w = trial.rows[0]
    net: Any = trial.task.net
    still = replace(trial.task, net=replace(net, dropout=0.0))
    training = replace(trial.training, batch=len(x))
    run = trial.run([(name, x, y, w) for name in "abc"], task=still, training=training)
    if trial.method.catalogue.pools_rows:
        return  # one model for all
    invited = torch.stack([m.present for m in run.moments], 1)  # [site, round]
    for name, v in flatten(run.engine.settled(run.moments[-1])):
        for i, site in enumerate(run.engine.names):
            what = f"site {site} against site {run.engine.names[0]}, with the same rows,"
            if torch.equal(invited[0], invited[i]):
                _same({name: v[0]}, {name: v[i]}, 10 * _rounding(trial), what)


@law
def nothing_private_travels(trial: Trial) -> None:
    """No tensor that a site keeps is in a message, by value, before it agreed to show it; nor any longer stretch of
    numbers that holds it. What the site started with or was told is no secret, nor are whole numbers. What the method
    itself says that its reports tell (WireRules.disclosed_state) is left out."""
    run = trial.whole
    stages, public = run.engine.stages, NumberSearch(t for _, t in flatten(run.engine.start().state))
    shown = [m for m in run.messages if m.way == "from site" and not stages[m.stage].exchanges[m.place].consent]
    reports = NumberSearch(t for m in shown for _, t in flatten(m.message))
    for at, here in enumerate(run.events):
        if isinstance(here, TrialMessage) and here.way == "to site":
            public.add(t for _, t in flatten(here.message))
        if not isinstance(here, Snapshot):
            continue
        later = [m for m in run.events[at:] if isinstance(m, TrialMessage) and m.way == "to site"]
        downs = NumberSearch(t for m in later for _, t in flatten(m.message))
        for name, value in flatten(here.state):
            if name.split("/")[0] in trial.method.wire.disclosed_state:
                continue
            for i, mine in enumerate(value):
                if not _says_something(mine) or public.hold(mine):
                    continue
                what = f"{name}, which {run.engine.names[i]} keeps after {when(here.stage, here.round - 1)}, is in"
                _hold(not reports.hold(mine), f"{what} a report, number for number")
                _hold(not downs.hold(mine), f"{what} what sites receive, number for number")


def _says_something(value: Tensor) -> bool:
    """Zeros, ones and counts could be anybody's."""
    return bool(value.numel()) and bool(value.isfinite().all()) and not bool((value == value.round()).all())


@law
def stop_and_resume_equals_not_stopping(trial: Trial) -> None:
    """From what the run holds, and from copies of it as a file would give them back; to the last bit."""
    whole, absent = trial.ragged, come_and_go(trial.sites)
    rounds = len(whole.moments)
    for stop in sorted({1, trial.training.rounds, rounds - 1} & set(range(1, rounds))):
        moment = next(itertools.islice(trial.engine(absent=absent).run(), stop - 1, None))
        copies = kept(moment)  # going on from the moment itself overwrites it
        for start, which in ((moment, "what was held"), (copies, "copies")):
            last = trial.run(absent=absent, moment=start)
            end = {k: v for k, v in whole.results.items() if k in last.results}  # facts of rounds before are not told
            _same(end, last.results, 0.0, f"a run stopped after {stop} of {rounds} rounds and resumed from {which}")


@law
def another_seed_gives_another_model(trial: Trial) -> None:
    one, other = (models_in(run) for run in (trial.whole, trial.run(seed=trial.seed + 1)))
    size, _ = worst(one, other)
    trains = any(ex.trains for stage in trial.method.plan(1) for ex in stage.exchanges)
    why = "nothing is learned" if trains else "none of its exchanges has a `step`, so nothing is trained"
    _hold(size > SEED, f"with another seed no number of any model changes by more than {size:.3g}: {why}")


def models_in(run: TrialRun) -> dict[str, Tensor]:
    return {k: v for k, v in run.results.items() if not k.startswith("fact ")}


@law
def an_absent_site_changes_nothing(trial: Trial) -> None:
    """What it keeps is what it was; no word of it is counted; and its rows might as well be others."""
    if trial.method.catalogue.pools_rows:
        return  # all rows are in one place: nobody can be absent
    away = 1
    name = trial.rows[away][0]

    def absent(s: int, r: int, place: int) -> list[bool]:
        return [i == away for i in range(trial.sites)]

    e = trial.engine(absent=absent)
    start = kept(e.start())
    run = trial.run(absent=absent)
    for m in run.moments:
        if m.stage == 0:
            before, after = ({k: v[away] for k, v in flatten(state)} for state in (start.state, m.state))
            _same(before, after, 0.0, f"what {name} keeps, absent in {when(0, m.round - 1)} and all before,")
    for line in run.engine.ledger.rows():
        if line["site"] == name and line["direction"] == "from site":
            _hold(line["messages"] == 0, f"{line['messages']} reports of {name} are counted, although it was absent")
    kind = "number" if trial.net == "linear" else "classes"
    (_, x, y, w), *_ = make_rows(kind, [len(trial.rows[away][1])], trial.task.net.shape, first=9)
    other = trial.run([*trial.rows[:away], (name, x, y, w), *trial.rows[away + 1 :]], absent=absent)
    _same(run.results, other.results, 0.0, f"the federation with other rows at {name}, which was absent,")


@law
def nobody_present_is_harmless(trial: Trial) -> None:
    """Sites end with the models that they would have without a round."""
    if trial.method.catalogue.pools_rows:
        return
    run = trial.run(absent=lambda s, r, place: [True] * trial.sites)
    e = trial.engine()
    ends = e.settled(e.start()), run.engine.settled(run.moments[-1])
    start, end = (dict(flatten(trial.method.models(e.task, state))) for state in ends)
    _same(start, end, 0.0, "after a run in which nobody was ever present a model")
    _hold(not any(m.facts for m in run.moments), "there are facts of rounds in which nobody was present")


@law
def a_site_that_learned_nothing_reports_zero(trial: Trial) -> None:
    """With a learning rate of 0 all parameters in a report are 0; numbers beside them (counts, weights) may be any."""
    run = trial.run(method=replace(trial.method, lr=0.0), training=replace(trial.training, lr=0.0))
    for m in run.messages:
        ex = run.engine.stages[m.stage].exchanges[m.place]
        if m.way == "to site" or ex.consent or not ex.trains:
            continue
        for name, value in _parameters(m.message):
            size = float(value.abs().max()) if value.numel() else 0.0
            _hold(
                size <= EXACT,
                f"{name} of the report in stage {m.stage + 1} is up to {size:.3g}, but should say no change (0)",
            )


def _parameters(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Those tensors of a message that are in a dict."""
    if isinstance(tree, Tensor):
        return
    for name, value in tree.items() if isinstance(tree, dict) else tree._asdict().items():
        if isinstance(tree, dict) and isinstance(value, Tensor):
            yield f"{prefix}{name}", value
        yield from _parameters(value, f"{prefix}{name}/")


@law
def a_coordinator_sees_no_more_than_it_needs(trial: Trial) -> None:
    """Given totals only, what it keeps does not grow with the sites, unless messages do, too. Given each report, it
    makes something else of them than of their mean: otherwise a total would do."""
    run = trial.whole
    task, last = run.engine.task, run.moments[-1]
    if trial.method.wire.aggregation == "sum" and not trial.method.wire.per_site_messages:
        one = {k: list(v.shape) for k, v in flatten(trial.method.coord(task, 1))}
        for k, v in flatten(last.coord):
            what = f"the coordinator receives totals, but keeps {k} of shape {list(v.shape)} for {trial.sites} sites"
            _hold(one.get(k) == list(v.shape), f"{what}, {one.get(k)} for one")
    for (s, place), ex in _exchanges(trial).items():
        merges = [m for m in run.merges if (m.stage, m.place) == (s, place) and any(True for _ in flatten(m.up))]
        if ex.wire.aggregation == "sum" or trial.sites == 1 or not merges:
            continue
        for m in merges:
            mean = map_tensors(lambda t: t.double().mean(0, keepdim=True).expand(t.shape).to(t.dtype), m.up)
            other = Merge(s, place, m.coord, mean, m.roster, *ex.merge(task, m.coord, mean, m.roster))
            if worst(_outcome(m), _outcome(other))[0] > EXACT:
                break
        else:
            what = f"stage {s + 1}, exchange {place + 1}: the coordinator sees each report"
            _hold(False, f'{what}, but gets the same result from their mean: aggregation="sum" is enough')


def _exchanges(trial: Trial) -> dict[tuple[int, int], AnyExchange]:
    """By stage and place."""
    plan = trial.method.plan(trial.training.rounds)
    return {(s, place): ex for s, stage in enumerate(plan) for place, ex in enumerate(stage.exchanges)}


def _outcome(m: Merge) -> dict[str, Tensor]:
    return dict(flatten(m.after)) | {f"fact {k}": f.value for k, f in m.facts.items()}


@law
def a_refusal_is_kept(trial: Trial) -> None:
    """A site that does not show what it may refuse leaves no trace of it in any message or fact."""
    asking = [at for at, ex in _exchanges(trial).items() if ex.consent]
    if not asking or trial.method.catalogue.pools_rows:
        return
    who, names = 1, [name for name, *_ in trial.rows]
    run = trial.run(absent=lambda s, r, place: [(s, place) in asking and i == who for i in range(trial.sites)])
    downs = [m for m in trial.whole.messages if m.way == "to site"]
    public = NumberSearch(t for m in downs for _, t in flatten(m.message))
    sent = NumberSearch(t for m in run.messages for _, t in flatten(m.message))
    sent.add(f.value for m in run.moments for f in m.facts.values())
    for m in trial.whole.messages:
        if (m.stage, m.place) in asking and m.way == "from site":
            for name, value in flatten(m.message):
                secret = _says_something(value[who]) and not public.hold(value[who])
                _hold(
                    not (secret and sent.hold(value[who])), f"{names[who]} refused to show {name}, but it was visible"
                )
    for merge in run.merges:
        if (merge.stage, merge.place) not in asking:
            continue
        where = f"{names[who]} refused in {when(merge.stage, 0)}"
        agreed = [f.value.tolist() for f in merge.facts.values() if f.means == AGREED]
        honest = [[i != who for i in range(trial.sites)]]
        _hold(agreed == honest, f"{where}, but the facts name those who agreed as {agreed} instead of {honest}")
        for name, fact in merge.facts.items():
            row = _row_of(fact, who, trial.sites)
            size = float(row.double().nan_to_num(torch.inf).abs().max()) if row.numel() else 0.0
            _hold(size == 0, f"{where}, but its row of the fact {name} is up to {size:.3g}, not 0")


def _row_of(fact: Fact, site: int, sites: int) -> Tensor:
    """What the site itself showed: along the first axis of sites. Along a second one others speak of it."""
    place = next((k for k, axis in enumerate(fact.axes) if axis in SITES), None)
    return fact.value[:0] if place is None or not axes_fit(fact, sites) else fact.value.select(place, site)


@law
def facts_fit_their_axes(trial: Trial) -> None:
    """An axis for each dimension; along sites and users as many entries as there are sites; the same in every round."""
    first: dict[tuple[int, str], Fact] = {}
    for run in (trial.whole, trial.ragged):
        for m in run.moments:
            for name, fact in m.facts.items():
                where = f"the fact {name} of {when(m.stage, m.round - 1)}"
                shape = f"has the shape {list(fact.value.shape)}, axes {fact.axes}"
                _hold(axes_fit(fact, trial.sites), f"{where} {shape}, but there are {trial.sites} sites")
                before = first.setdefault((m.stage, name), fact)
                alike = (before.value.shape, before.value.dtype, before[1:]) == (
                    fact.value.shape, fact.value.dtype, fact[1:])  # fmt: skip
                _hold(alike, f"{where} {shape}, but in another round {list(before.value.shape)}, {before.axes}")


@law
def under_masks_the_same_is_learned(trial: Trial) -> None:
    """Where only totals are looked at: of numbers as they are under masks, below a limit and multiples of a small one;
    also with sites absent."""
    hides = Guards(masked=True, least=1)
    if trial.optimiser == "sgd" and any(hides.masks(ex) for ex in _exchanges(trial).values()):
        got = trial.run(absent=come_and_go(trial.sites), guards=hides)
        _same(trial.ragged.results, got.results, MASKED, "the federation under masks")


@law
def settling_looks_only_at_what_it_says(trial: Trial) -> None:
    """Where an exchange names what of its word settles a model, the rest of it changes nothing."""
    for t in rehearse(trial.task, trial.method, 1, trial.sites):
        if (ex := t.stage.last).wire.final_fields:
            rest = {k: v if k.split("/")[0] in ex.wire.final_fields else v + 1 for k, v in flatten(t.last)}
            one, other = (dict(flatten(ex.settle(trial.task, t.state, w))) for w in (t.last, unflatten(t.last, rest)))
            _same(
                one,
                other,
                0.0,
                (
                    f"a model settled by {sorted(ex.wire.final_fields)} and by a message that differs in the "
                    "other fields"
                ),
            )


LAWS: tuple[Law, ...] = (
    only_declared_tensors_travel,
    engines_agree,
    permuting_sites_permutes_results,
    identical_sites_get_identical_models,
    nothing_private_travels,
    stop_and_resume_equals_not_stopping,
    another_seed_gives_another_model,
    an_absent_site_changes_nothing,
    nobody_present_is_harmless,
    a_site_that_learned_nothing_reports_zero,
    a_coordinator_sees_no_more_than_it_needs,
    a_refusal_is_kept,
    facts_fit_their_axes,
    under_masks_the_same_is_learned,
    settling_looks_only_at_what_it_says,
)
