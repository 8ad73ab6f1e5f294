"""What a run is made of: the task, the rows as tensors, and who is away when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail import methods, nets
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.exchange import Roster, Stage
from vitrail.core.facts import ENDS
from vitrail.core.losses import CrossEntropy, Evidence, Hazard, Loss, SquaredError, UncertaintyLoss
from vitrail.core.random import key
from vitrail.core.task import Task
from vitrail.core.tensors import flatten, map_tensors
from vitrail.data.encoding import SiteData, class_weights, columns, numeric
from vitrail.engine.batches import Sites, gather_sites, undersampled
from vitrail.engine.contract import WireEntry
from vitrail.engine.rounds import Training
from vitrail.methods import AnyMethod
from vitrail.metrics.calibration import BEDSIDE
from vitrail.metrics.scores import DOUBT
from vitrail.metrics.survival import periods, risk_names
from vitrail.nets import MLP, Module
from vitrail.privacy.secure_sum.fixed_point import ZERO, ZEROS
from vitrail.privacy.secure_sum.limbs import LIMBS
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.runs.plan import Plan

Away = Mapping[str, Sequence[tuple[int, int]]]  # site -> rounds it is absent, first to last, counted from 1
CURVE_POINTS = 40  # evaluations along a run
MAJORITY = "majority"  # the name of the model that always gives the same answer: the most common, or the mean
COVERAGE = "coverage"  # the split under which stands what doubt is worth on the hold-out rows
AT_BEDSIDE = "bedside"  # the split under which stand its hold-out rows by risk, where the study tells them
RISK = "risk"  # the split under which stands how hold-out rows of low, middle and high risk fared
TOLD = (COVERAGE, AT_BEDSIDE, RISK)  # splits that have numbers of their own, and no metrics


def build_task(study: Study, method: AnyMethod, seed: int, device: str = "cpu") -> Task:
    """The network everyone starts from; under one seed the same for every method, but for the ends it asks for."""
    net = build_net(with_suitable_network(study, method), study.target.outputs).framed(method.needs.adapters)
    start = net.init(torch.Generator().manual_seed(key(seed, "init")))
    task = Task(net, {k: v.to(device) for k, v in start.items()}, loss_of(study))
    return training_of(study).apply_to(task, method)


def with_suitable_network(study: Study, method: AnyMethod) -> Study:
    """A study of pictures with the kind of network that the method is about, where it is about one."""
    if not study.images or method.catalogue.required_net in ("", study.network.kind):
        return study
    return study.with_changes(
        network={"kind": method.catalogue.required_net, **nets.TABLE[method.catalogue.required_net].usual}
    )


def build_net(study: Study, outputs: int) -> MLP | Module:
    shape = study.images.shape if study.images else (len(columns(study)),)
    net = nets.TABLE[study.network.kind].make(shape, outputs, study.network)
    return replace(net, normalise=study.images.normalise) if study.images and isinstance(net, Module) else net


def loss_of(study: Study) -> Loss:
    if study.target.kind != "classes":
        return SquaredError() if study.target.kind == "number" else Hazard()
    return Evidence(study.training.kl, study.training.anneal) if study.training.loss == "evidence" else CrossEntropy()


def check_trainable(wanted: Iterable[tuple[Study, AnyMethod]]) -> None:
    """Before many runs begin: all that keeps one of these methods from training as its study says, told at once."""
    errors = []
    for study, method in wanted:
        if problems := unguarded(study):
            errors.append(VitrailError("these runs cannot be protected", problems))
        try:
            build_task(study, method, 0)
        except VitrailError as error:
            errors.append(error)
    if errors:
        raise VitrailError(errors[0].title, dict.fromkeys(p for error in errors for p in error.problems))


def unguarded(study: Study) -> list[Problem]:
    """Why many federations in one stack would not be what the study says: they know no guards."""
    if study.share is not None:
        what = "runs that are computed together look at no shares."
        return [Problem("share", what, "Remove [share], or use vitrail run.")]
    if study.with_changes(protect={"sum": "plain", "least": 3, "scores": "rounded"}).protect == type(study.protect)():
        return []  # masks change no number; who could read which is no matter where all is on one machine
    return [
        Problem(
            "protect", "runs that are computed together cannot be protected.", "Remove [protect], or use vitrail run."
        )
    ]


def last_splits(task: Task, study: Study) -> tuple[str, ...]:
    """What is scored after the last round."""
    doubts = (COVERAGE,) if isinstance(task.loss, UncertaintyLoss) else ()
    times = (RISK,) if isinstance(task.loss, Hazard) else ()
    return ("test", "train", *doubts, *times, *([AT_BEDSIDE] * study.bedside.tell))


def scored_in(study: Study, split: str) -> tuple[str, ...]:
    """The names of what is told under a split."""
    own = {COVERAGE: DOUBT, AT_BEDSIDE: BEDSIDE, RISK: risk_names(study.target.outputs)}
    return own.get(split, study.metrics)


def asks_consent(stage: Stage) -> bool:
    """Whether a site may refuse to take part in this stage."""
    return any(ex.consent for ex in stage.exchanges)


def with_consent() -> str:
    """Methods whose sites are asked to show something, for a hint."""
    return " or ".join(methods.named(lambda kind: any(asks_consent(stage) for stage in kind().plan(1))))


def with_ends() -> str:
    """Methods that learn private layers, for a hint."""
    return " or ".join(methods.named(lambda kind: kind().needs.adapters.input))


def standardise_lines(study: Study, times: int = 1) -> list[WireEntry]:
    """What global standardisation exchanges, each of so many times."""
    names, lines = len(numeric(study)), []
    if study.standardise == "global" and names:
        if study.protect.sum == "masked":
            limbs = names, LIMBS
            about = ("count", (names,)), ("sum", limbs), ("sum of squares", limbs), (ZERO, (ZEROS,))
            lines += [
                WireEntry("standardise", "from site", name, shape, "int64", 8 * math.prod(shape), times, "masked")
                for name, shape in about
            ]
        else:
            for step in ("count", "sum", "count", "squared distance to the mean"):
                lines.append(WireEntry("standardise", "from site", step, (names,), "float64", 8 * names, times, "sum"))
        for step in ("mean", "standard deviation"):
            lines.append(WireEntry("standardise", "to site", step, (names,), "float64", 8 * names, times, "sum"))
    return lines


def resolve(study: Study, method: str | AnyMethod | None, rounds: int | None) -> tuple[Study, AnyMethod]:
    if study.parties:
        what = "the study has parties, which hold columns of the same people, and no sites."
        hint = "With parties: vitrail run, predict, explain, report; from Python vt.together."
        raise VitrailError("cannot train", [Problem("parties", what, hint)])
    if isinstance(method, str):
        given = {k: v for k, v in study.method.items() if k != "name"} if method == study.method["name"] else {}
        method = methods.build(method, given)
    chosen = method or study.build_method()
    study = with_suitable_network(study, chosen)
    changes: dict[str, Any] = {"method": {"name": methods.name_of(chosen), **methods.settings(chosen)}}
    if rounds is not None:
        changes["training"] = {"rounds": rounds}
    return study.with_changes(**changes), chosen


def check_options(
    engine: str,
    device: str,
    rate: float,
    away: Away,
    refuse: Sequence[str],
    pseudonyms: Mapping[str, str],
    names: list[str],
    plan: Plan,
    screened: bool,
) -> None:
    problems, method, seed = [], plan.method, plan.seed
    if engine not in ("vectorised", "looped"):
        problems.append(Problem("engine", f"expected 'vectorised' or 'looped', got {engine!r}.", "Correct it."))
    try:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            problems.append(Problem("device", "there is no CUDA device on this machine.", "Use --device cpu."))
    except RuntimeError:
        problems.append(Problem("device", f"expected 'cpu' or 'cuda', got {device!r}.", "Correct it."))
    if not 0 <= rate < 1:
        problems.append(
            Problem("dropout_rate", f"expected a share of at least 0 and below 1, got {rate}.", "Correct it.")
        )
    problems += [Problem("refuse", f"there is no site {s!r}.", nearest(s, names)) for s in refuse if s not in names]
    problems += _bad_pseudonyms(pseudonyms, refuse, names)
    if refuse and not screened and not any(asks_consent(stage) for stage in method.plan(1)):
        what = f"{method.catalogue.title} asks no site to publish anything, so there is nothing to refuse."
        problems.append(Problem("refuse", what, f"Leave --refuse out, or run --method {with_consent()}."))
    if pseudonyms and not screened and plan.meanings.isdisjoint(ENDS):
        title = method.catalogue.title
        what = f"{title} publishes nothing about a single site, so no pseudonym is needed."
        problems.append(Problem("pseudonyms", what, f"Leave --pseudonym out, or run --method {with_ends()}."))
    for site, spans in away.items():
        if site not in names:
            problems.append(Problem("away", f"there is no site {site!r}.", nearest(site, names)))
        problems += [
            Problem("away", f"expected rounds first-last from 1, got {a}-{b}.", "Correct it.")
            for a, b in spans
            if not 1 <= a <= b
        ]
    if not 0 <= seed < 2**63:
        problems.append(Problem("seed", f"expected a whole number from 0 to 2^63 - 1, got {seed}.", "Correct it."))
    if problems:
        raise VitrailError("the run cannot start", problems)


def check_keeping(plan: Plan, out: object) -> None:
    """Reports are kept only where there are some, and where all sites' models are made of one that they make up."""
    task, method, what = plan.task, plan.method, ""
    ex = method.plan(1)[0].last
    if method.catalogue.pools_rows:
        what = "all rows are in one place, so no site reports anything."
    elif not any(contract.up for contract in plan.contracts[0]):
        what = "its sites report nothing."
    elif method.wire.per_site_messages or not method.shared(method.coord(task, 1)):
        what = "it makes one model for each site, and no shared model that a coalition's reports would give."
    else:
        one_site = torch.ones(1, dtype=torch.bool)
        state, everyone = method.state(task, 1), Roster(("site",), one_site, torch.zeros(1), torch.tensor(1))
        down = ex.send(task, method.coord(task, 1), everyone)
        one, other = (dict(flatten(ex.settle(task, state, d))) for d in (down, map_tensors(lambda t: t + 1, down)))
        if all(torch.equal(v, other[k]) for k, v in one.items()):
            what = "a site predicts with a model of its own, which does not depend on the shared one."
    problems = (
        [Problem(f"method {method.catalogue.title}", what, "Keep the updates of a method that shares a model.")]
        if what
        else []
    )
    if out is None:
        problems.append(Problem("keep_updates", "there is no folder to keep them in.", "Give a folder: out, or --out."))
    if problems:
        raise VitrailError("the updates cannot be kept", problems)


def _bad_pseudonyms(pseudonyms: Mapping[str, str], refuse: Sequence[str], names: list[str]) -> list[Problem]:
    problems, taken = [], list(pseudonyms.values())
    for site, other in pseudonyms.items():
        where = f"pseudonym of {site}"
        if site not in names:
            problems.append(Problem("pseudonyms", f"there is no site {site!r}.", nearest(site, names)))
        if site in refuse:
            what = "the site refuses to publish, so it needs no pseudonym."
            problems.append(Problem(where, what, "Let it refuse, or publish under a pseudonym."))
        if not other.isprintable() or not other or other != other.strip():
            problems.append(Problem(where, f"expected a name, got {other!r}.", "Write it without spaces around it."))
        elif other in names:
            problems.append(Problem(where, f"{other!r} is the name of a site.", "Choose one that no site has."))
        elif taken.count(other) > 1:
            problems.append(Problem(where, f"{other!r} is used more than once.", "Give each site its own."))
    return problems


def training_of(study: Study) -> Training:
    t = study.training
    steps = (t.rounds, t.epochs, t.batch, t.lr, t.momentum, t.decay, t.decays, t.total == "mean")
    augment = study.images.augment if study.images else ()
    return Training(
        *steps, t.optimiser, t.weight_decay, tuple(t.rates.items()), t.memory, augment, t.weight_decay_alone
    )


def training_rows(data: list[SiteData], study: Study, method: AnyMethod, device: str) -> Sites:
    whose = {s.name: torch.from_numpy(s.train_persons) for s in data if s.train_persons is not None}
    sites = gather_sites([(s.name, *_as_tensors(study, s.train_x, s.train_y, s, s.train_w)) for s in data], whose)
    if method.catalogue.pools_rows:
        y, own = sites.y.argmax(1).numpy(), {s.name: s.train_w for s in data if s.train_w is not None}
        w = np.concatenate([own[name] for name in sites.names]) if own else None
        sites = sites.pooled(_row_weights(study, y, y, None, w, w))
    if study.target.kind == "classes" and study.training.class_weights == "undersample":
        sites = undersampled(sites, study.seeds[0])
    return sites.to(device)


def held_rows(data: list[SiteData], study: Study, method: AnyMethod, device: str) -> Sites | None:
    """The hold-out rows, where an exchange of the method counts on them."""
    if not any(ex.needs.holdout for stage in method.plan(study.training.rounds) for ex in stage.exchanges):
        return None
    return gather_sites([(s.name, *_as_tensors(study, s.test_x, s.test_y, s, s.test_w)) for s in data]).to(device)


def _as_tensors(study: Study, x: Any, y: Any, site: SiteData, w: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Features, target and weights: those of the classes among the site's training rows, times the rows' own."""
    rows, target = torch.from_numpy(x), as_outputs(study, y)
    weights = _row_weights(study, y, site.train_y, site.counts, site.train_w, w)
    return rows if study.images else rows.float(), target, weights


def as_outputs(study: Study, y: Any) -> Tensor:
    """[row, output]: outcomes as a loss takes them."""
    if study.target.kind == "time":
        return torch.from_numpy(periods(y, study.target.outputs)).float()
    target = torch.from_numpy(np.ascontiguousarray(y))
    number = study.target.kind == "number"
    return (target[:, None] if number else torch.nn.functional.one_hot(target.long(), study.target.outputs)).float()


def _row_weights(study: Study, y: Any, trained: Any, counts: Any = None, stand: Any = None, own: Any = None) -> Tensor:
    """[row, 1]. `own`: for how many each of these rows stands, `stand`: each of those trained on."""
    weights = np.ones(len(y)) if own is None else own
    if study.target.kind == "classes" and study.training.class_weights == "inverse":
        weights = weights * class_weights(trained, len(study.target.levels), counts, stand)[y.astype(np.int64)]
    return torch.from_numpy(weights).float()[:, None]


def absence(
    names: tuple[str, ...], seed: int, rate: float, away: Away, refuse: Sequence[str], stages: Sequence[Stage]
) -> Callable[[int, int], Tensor] | None:
    if not rate and not away and not refuse:
        return None

    def absent(stage: int, round_: int) -> Tensor:
        if asks_consent(stages[stage]):  # asked once, and waited for: who is missing here has refused
            return torch.tensor([name in refuse for name in names])
        gone = [key(seed, name, "absent", stage, round_) < rate * 2**63 for name in names]
        planned = [any(a <= round_ + 1 <= b for a, b in away.get(name, ())) for name in names]
        return torch.tensor([g or p for g, p in zip(gone, planned, strict=True)])

    return absent


def is_evaluated(done: int, total: int) -> bool:
    return done == total or done % max(1, total // CURVE_POINTS) == 0


def refits(study: Study, method: AnyMethod) -> bool:
    """Whether the sites train once more on all rows; a method that judges models by held-out rows needs these."""
    stages = method.plan(study.training.rounds)
    return study.training.refit and not any(ex.needs.holdout for stage in stages for ex in stage.exchanges)
