"""The study: what the sites agreed on, as one TOML file. Typed, validated, every problem at once with its line."""

from __future__ import annotations

import datetime
import itertools
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from vitrail import methods, nets
from vitrail.core.display import HtmlRepr
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.source import PassedOverWarning
from vitrail.data.schema import GUESTS_OWN, Cell, Feature, Matching, Party, Split, Strict, TableSchema, Target
from vitrail.storage import format_versions
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.toml import key_lines, toml_key, toml_value
from vitrail.study.defaults import changed_words, fill_in, fill_in_times
from vitrail.study.errors import explain
from vitrail.study.known_findings import KnownFinding, known_section
from vitrail.study.limits import MOST_TOLD, count_problems, read_study, size_problems
from vitrail.study.remote import TransferSpec, Verdict
from vitrail.study.sections import Energy, ShareSpec
from vitrail.study.validation import CLASS_METRICS, METRICS, NUMBER_METRICS, TIME_METRICS, inconsistencies

if TYPE_CHECKING:
    from vitrail.data.readers.frames import Sites

SHARES = frozenset({"balanced_accuracy", "accuracy", "f1", "f1_event", "auc", "c_index", "uno_c"})  # between 0 and 1
LOWER_IS_BETTER = frozenset(  # 0 is perfect; of all others 1
    {"log_loss", "brier", "rmse", "mae", "integrated_brier", "time_log_loss"}
)
SEEDS = (2934384, 10231938, 8273, 2019231, 62739)  # those of the iFedAvg paper
DEEPEST = 8  # sections within sections; a study needs four


class Network(Strict):
    """The network that is trained, the same at every site."""

    kind: str = "mlp"  # an mlp or linear; for pictures cnn, resnet18 or prototypes (nets.TABLE)
    # units of the layers of an mlp, or of the two layers between a cnn's convolutions and its head
    hidden: tuple[int, ...] = (128, 64)
    width: int = Field(default=32, ge=1, le=1024)  # channels of the first convolution; default 16 for prototypes
    dropout: float = Field(default=0.0, ge=0, lt=1)  # the share of units left out of each step
    prototypes: int | None = Field(default=None, ge=1, le=1000)  # for prototypes: how many each class has; left out: 10
    # for prototypes: numbers in each; left out: 128 with `weights`, otherwise 16
    latent: int | None = Field(default=None, ge=1, le=4096)
    weights: str = ""  # for prototypes: a file with the weights of the backbone, which every site needs
    # for prototypes with `weights`: whose weights these are; left out: efficientnet_lite0
    backbone: Literal["efficientnet_lite0", "vgg11", "vgg16", "vgg19", "densenet121"] | None = None
    # for prototypes: how alike a patch and a prototype are, by their distance or their angle; left out: log
    similarity: Literal["log", "cosine"] | None = None
    # for times: one score for all intervals, or one for each interval
    hazards: Literal["proportional", "free"] | None = None
    # for prototypes: whether convolutions are not trained, and are computed once for each picture
    frozen: bool | None = None


class TrainingSpec(Strict):
    """How the network is trained, with every method that does not say otherwise."""

    rounds: int = Field(default=100, ge=1, le=1_000_000)  # how often sites train and their changes are aggregated
    # how often a site goes through its rows in a round; default 4 for times
    epochs: int = Field(default=1, ge=1, le=1_000_000)
    batch: int = Field(default=16, ge=1, le=1_000_000_000)  # rows in a training step
    # the learning rate; `init` writes 0.02 for classes; default 0.002 for pictures
    lr: float = Field(default=0.005, gt=0, le=1e39)
    momentum: float = Field(default=0.5, ge=0, lt=1)  # the share of the last step that the next one keeps; for sgd
    # the factor by which the learning rate is multiplied from time to time
    decay: float = Field(default=0.9, gt=0, le=1)
    # how often the learning rate is multiplied by `decay` in a run; 0: never
    decays: int = Field(default=50, ge=0, le=1_000_000)
    # evidence: for classes, with a model that says how unsure it is
    loss: Literal["likelihood", "evidence"] = "likelihood"
    # for evidence: the weight of the penalty on evidence for wrong classes
    kl: float = Field(default=0.1, ge=0, le=1e6)
    anneal: int = Field(default=10, ge=0, le=1_000_000_000)  # for evidence: the epochs until `kl` has its full weight
    total: Literal["sum", "mean"] = "sum"  # whether the losses of a batch's rows are summed or averaged
    # inverse: all classes of a site have the same weight in training; undersample: each site trains on as many rows of
    # each class as its rarest class has, drawn once
    class_weights: Literal["inverse", "undersample", "none"] = "none"
    optimiser: Literal["sgd", "adam"] = "sgd"  # the optimizer; adam does not use `momentum`
    # how strongly weights are pulled to zero; default 0 for pictures, 0.1 for times
    weight_decay: float = Field(default=0.01, ge=0, le=1e6)
    # the same where a site trains alone; left out: `weight_decay`
    weight_decay_alone: float | None = Field(default=None, ge=0, le=1e6)
    # a factor of `lr` for a group of layers, such as head = 0.1
    rates: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})
    # what of the optimizer's memory is kept between rounds: nothing, that of layers that stay at the site, all
    memory: Literal["fresh", "own", "kept"] = "own"
    refit: bool = False  # after scoring, train once more on all rows; `predict` and exports use that model


class Spend(Strict):
    """A privacy budget for the whole run."""

    # for a row or site that is removed; for one that is replaced it is more than twice as large
    epsilon: float = Field(gt=0, le=1e6)
    delta: float = Field(default=1e-5, gt=0, lt=1)  # the probability that the guarantee does not hold


class Protect(Strict):
    """How the reports of sites are protected, with every method alike."""

    # what the coordinator can read: reports, a total, totals of groups, or a total that two servers choose
    sum: Literal["plain", "masked", "groups", "two servers"] = "plain"
    # the fewest sites in any total that is opened; in a total of two each would know the other's part
    least: int = Field(default=3, ge=3)
    # a robust aggregate, which a few lying sites hardly move
    robust: Literal["no", "median", "trimmed", "multikrum", "clipping"] = "no"
    clip: float | None = Field(default=None, gt=0)  # the largest length of a site's change; a longer one is shortened
    # noise in every step, so that no row matters much; `clip` is then that of a row; keep lr at 0.005 or below
    rows: Spend | None = None
    rows_least: int = Field(default=0, ge=0)  # a site with fewer training rows does not take part
    sites: Spend | None = None  # noise on the total of every round, so that no site matters much
    second: str = ""  # with two servers, between machines: who runs the second one
    compress: Literal["no", "int8", "rank"] = "no"  # send fewer bytes; what is lost is added to the next report
    # between machines: scores rounded to tens of patients, as they are, or not at all
    scores: Literal["rounded", "exact", "none"] = "rounded"


class Screen(Strict):
    """The screening before the first round, which reports whose data does not fit."""

    ask: bool = True  # false: sites publish nothing for it, and no run reports whose data does not fit


class Bedside(Strict):
    """Calibration and net benefit: what sites publish about their predicted risks at the end of a run."""

    # counts of held-out rows by risk, in groups of at least 10; false: only a site's own card has them
    tell: bool = False


class Study(HtmlRepr, TableSchema):
    """Features, target, split, network, training, method, seeds, metrics."""

    # the format of this file; for keys that are left out, an older file keeps the defaults of its time
    format: str = format_versions.STUDY
    name: str = "study"  # shown on pages and consent forms
    paper: str = ""  # the paper whose protocol fills in what this file leaves out, such as ifedavg; empty: our defaults
    description: str = ""  # what is asked about whom; shown on pages
    network: Network = Network()
    training: TrainingSpec = TrainingSpec()
    # the method's name; its settings are written beside it
    method: dict[str, Any] = Field(default_factory=lambda: {"name": methods.DEFAULT})
    screen: Screen = Screen()
    bedside: Bedside = Bedside()
    # for all that is drawn at random; a run uses the first, a comparison as many as it is asked for
    seeds: tuple[int, ...] = SEEDS
    metrics: tuple[str, ...] = ()  # the scores; the first decides; left out: the usual ones; f1 is weighted by class
    # only in a vertical study; left out: sites hold the same columns of different people
    parties: dict[str, Party] = Field(default={})
    match: Matching | None = None  # only in a vertical study
    protect: Protect = Protect()
    verdict: Verdict | None = None  # left out: no verdicts between machines; in simulation use `vitrail compare`
    energy: Energy = Energy()
    share: ShareSpec | None = None  # left out: nobody looks at shares
    transfer: TransferSpec | None = None  # left out: no transfer between machines; in simulation use `vitrail transfer`
    # answers to findings of the screening; a site may keep its own in a file of its own, for `--known`
    known: dict[str, KnownFinding] = Field(default={})

    def __repr__(self) -> str:
        what = "pictures" if self.images else f"{len(self.features)} features"
        return f"<study {self.name!r}: {self.target.column!r} from {what}, {self.method['name']}>"

    __str__ = __repr__

    @property
    def host(self) -> str:
        """The party with the target; "" in a study of sites."""
        return next((name for name, party in self.parties.items() if party.role == "host"), "")

    @property
    def guests(self) -> list[str]:
        return [name for name, party in self.parties.items() if party.role == "guest"]

    @classmethod
    def parse(cls, raw: Mapping[str, Any], source: str = "study", where: Callable[..., str] | None = None) -> Study:
        """A study from nested dictionaries; all problems at once."""
        place = where or (lambda *path: ".".join(str(p) for p in path))
        problems: list[Problem] = []
        plain = _plain(raw, (), place, problems)
        places = {p.where for p in problems}
        of = plain.get("format", format_versions.STUDY)
        if why := format_versions.misread(of, format_versions.STUDY, "study file"):
            hint = "Install the version of Vitrail that wrote it, or draft the study again."
            raise VitrailError(f"{source} cannot be read", [Problem(place("format"), why, hint)])
        if absurd := list(itertools.islice(count_problems(plain, place), MOST_TOLD)):
            raise VitrailError(f"{source} is not a valid study ({len(absurd)} to correct)", absurd)
        fill_in(plain, of)
        plain["format"] = format_versions.STUDY
        _settle(plain)
        study = None
        try:
            study = cls.model_validate(plain)
        except ValidationError as error:
            errors = error.errors()
            faults = dict.fromkeys(explain(e, place, cls) for e in errors[:MOST_TOLD])  # a union says it more than once
            problems += [p for p in faults if p.where not in places]
        places = {p.where for p in problems}
        others = (p for p in inconsistencies(plain, place) if p.where not in places)
        problems += itertools.islice(others, MOST_TOLD)
        problems += _unused(study, place) if study is not None and study.parties else []
        problems += size_problems(study, place) if study is not None and not problems else []
        if problems and format_versions.is_newer(of, format_versions.STUDY):
            what = (
                f"it has format {of}, which is newer than the formats that this Vitrail reads "
                f"({format_versions.STUDY})."
            )
            problems.insert(0, Problem(place("format"), what, "Install a newer version: it may know what follows."))
        if problems or study is None:
            raise VitrailError(f"{source} is not a valid study ({len(problems)} to correct)", problems)
        usual = CLASS_METRICS[:4] if study.target.kind == "classes" else METRICS[study.target.kind]
        metrics = study.metrics or usual
        return study.model_copy(update={"metrics": metrics})

    @classmethod
    def load(cls, path: str | Path, kept: bool = False) -> Study:
        """Read a study file. `kept`: a file that a run wrote, which has the first format if it names none."""
        path = Path(path)
        text, raw = read_study(path)
        if kept:
            raw.setdefault("format", format_versions.FIRST)
        elif words := changed_words(raw):
            warnings.warn(f"{path}: {words}", PassedOverWarning, stacklevel=2)
        lines = key_lines(text, DEEPEST)

        def where(*keys: str | int) -> str:
            named = [str(k) for k in keys]
            shown = ".".join(named)
            for n in range(len(named), 0, -1):
                if tuple(named[:n]) in lines:
                    return f"{path}:{lines[tuple(named[:n])]} {shown}"
            return f"{path} {shown}"

        return cls.parse(raw, str(path), where)

    @classmethod
    def infer(cls, sites: Sites, target: str, *, site: str = "", **given: Any) -> Study:
        """Draft a study from a table for each site, or from one whose column `site` names it: kinds, ranges and
        categories are guesses for a person to check. Warnings list what a person has to decide."""
        from vitrail.data.drafting.features import infer_study

        return cls.parse(infer_study(sites, target, site, given), "the inferred study")

    def save(self, path: str | Path) -> None:
        write_atomically(Path(path), self.to_toml())

    def to_toml(self) -> str:
        """The study as a file a person can read; defaults are written out."""
        plain = self.model_dump()
        out = [
            f"{k} = {toml_value(plain[k])}"
            for k in ("format", "name", "description", "seeds", "metrics", "standardise", "reference_level")
        ]
        columns = {k: plain[k] for k in ("paper", "site_column", "weight_column", "person")}
        out += [f"{k} = {toml_value(v)}" for k, v in columns.items() if v]
        sections = ("target", *["images"] * bool(self.images), "split", "network", "training", "method")
        sections += () if self.images or self.parties else ("screen",)
        more = [*["match"] * bool(self.match), *["protect"] * (self.protect != Protect())]
        more += ["bedside"] * (self.bedside != Bedside())
        more += ["verdict"] * bool(self.verdict) + ["energy"] * (self.energy != Energy()) + ["share"] * bool(self.share)
        more += ["transfer"] * bool(self.transfer)
        for section in (*sections, *more):
            out += ["", f"[{section}]"]
            fields = getattr(type(getattr(self, section)), "model_fields", {})  # a method has none
            empty = {k: f.default for k, f in fields.items() if f.default in (None, "", (), {})}
            content = {k: v for k, v in plain[section].items() if k not in empty or v != empty[k]}
            content = _without_times(content) if section == "target" else content
            out += [f"{toml_key(k)} = {toml_value(v)}" for k, v in content.items()]
        for name, party in plain["parties"].items():
            out += ["", f"[parties.{toml_key(name)}]"]
            unused = GUESTS_OWN if party["role"] == "host" else ()
            out += [f"{k} = {toml_value(v)}" for k, v in party.items() if k not in unused]
        out += [line for name, answer in plain["known"].items() for line in ("", known_section(name, answer))]
        defaults = Feature(kind="numeric").model_dump()
        for name, feature in plain["features"].items():
            out += ["", f"[features.{toml_key(name)}]", f"kind = {toml_value(feature['kind'])}"]
            out += [f"{k} = {toml_value(v)}" for k, v in feature.items() if k != "kind" and v != defaults[k]]
        return "\n".join(out) + "\n"

    def build_method(self) -> methods.AnyMethod:
        return methods.build(self.method["name"], {k: v for k, v in self.method.items() if k != "name"})

    def with_changes(self, **changes: Any) -> Study:
        """A copy with these fields replaced (sections as dictionaries of what changes), validated again."""
        plain = self.model_dump()
        for name, value in changes.items():
            before: Any = plain.get(name)
            merge = isinstance(before, dict) and isinstance(value, dict) and name != "method"
            plain[name] = {**before, **value} if merge else value
        return Study.parse(plain)


def _unused(study: Study, place: Callable[..., str]) -> list[Problem]:
    """What a study with parties says and nothing heeds: how they train is the method's."""
    out = []
    for section, used in (("training", ("class_weights", "weight_decay")), ("network", ())):
        settings, usual = getattr(study, section), type(getattr(study, section))()
        for key in (
            k for k in type(settings).model_fields if k not in used and getattr(settings, k) != getattr(usual, k)
        ):
            method = methods.PARTIES.get(study.method["name"])
            hint = (
                f"Remove it. The keys of [method] are {', '.join(method.__dataclass_fields__)}."
                if method
                else "Remove it."
            )
            what = "this key is not used: in a study with parties the method decides how training is done."
            out.append(Problem(place(section, key), what, hint))
    return out


def _without_times(target: dict[str, Any]) -> dict[str, Any]:
    """A target as a file says it: each column once, and of intervals only where there are some."""
    if target["kind"] == "time":
        unused = ("column", "center", "scale", *["intervals"] * ("cuts" in target))
        return {k: v for k, v in target.items() if k not in unused}
    return {k: v for k, v in target.items() if k != "intervals"}


def _settle(plain: Any) -> None:
    """Defaults that depend on other sections, and what was spelt otherwise before, in place."""
    if isinstance(target := plain.get("target"), dict) and target.get("kind") == "time":
        target.setdefault("column", target.get("event", ""))  # what rows are told by, as any target's
        if plain.get("images") is None and not plain.get("parties"):
            fill_in_times(plain)
    if isinstance(training := plain.get("training"), dict) and training.get("loss") in ("sum", "mean"):
        training.setdefault("total", training.pop("loss"))
    if isinstance(split := plain.get("split"), dict) and "at_least" in split:
        split.setdefault("at_most", 0.5)  # what it was before a file could say it: runs keep their hold-out rows
    if isinstance(split, dict) and isinstance(day := split.get("test_from"), datetime.date):
        split["test_from"] = f"{day:%Y-%m-%d}"  # TOML has dates of its own
    if plain.get("images") is not None and isinstance(network := plain.setdefault("network", {}), dict):
        kind = network.setdefault("kind", "cnn")
        network_type = nets.TABLE.get(kind) if isinstance(kind, str) else None
        for k, v in network_type.usual.items() if network_type else ():
            network.setdefault(k, v)
    if plain.get("images") is not None or plain.get("parties"):  # tuned on tables of sites
        training = plain.setdefault("training", {})
        usual = {"weight_decay": 0.0} | ({"lr": 0.002} if plain.get("images") is not None else {})
        for key, value in usual.items() if isinstance(training, dict) else ():
            training.setdefault(key, value)
    if plain.get("parties"):
        plain.setdefault("method", {"name": methods.PARTIES_DEFAULT})
        if plain.get("match") is None:
            plain["match"] = {}


def _plain(value: Any, path: tuple[Any, ...], place: Callable[..., str], problems: list[Problem]) -> Any:
    """Dictionaries, tuples and single values; what no study can hold (TOML has 64-bit numbers) is told."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping | list | tuple) and len(path) > DEEPEST:
        problems.append(Problem(place(*path[:2]), "it is nested too deeply.", "Correct it."))
        return None
    if isinstance(value, Mapping):
        names = [_plain(k, path, place, problems) for k in value]
        return {k: _plain(v, (*path, k), place, problems) for k, v in zip(names, value.values(), strict=True)}
    if isinstance(value, list | tuple):
        return tuple(_plain(v, (*path, i), place, problems) for i, v in enumerate(value))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        problems.append(Problem(place(*path), "expected a number of at most 64 bits.", "Correct it."))
        return None
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):  # halves of characters; no file holds them
        problems.append(Problem(place(*path), f"expected Unicode text, got {value!a}.", "Correct it."))
        return "?"
    return value


__all__ = [
    "CLASS_METRICS",
    "METRICS",
    "NUMBER_METRICS",
    "TIME_METRICS",
    "Cell",
    "Feature",
    "Matching",
    "Network",
    "Party",
    "Protect",
    "Screen",
    "Split",
    "Study",
    "TableSchema",
    "Target",
    "TrainingSpec",
    "TransferSpec",
    "Verdict",
]
