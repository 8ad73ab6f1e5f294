"""What is wrong with a study that types cannot say: sections that do not go together, names that are none."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitrail import methods, nets
from vitrail.core.errors import Problem, nearest
from vitrail.data.schema import GUESTS_OWN, Party, canon
from vitrail.methods.blocks.paper_protocols import PROTOCOLS
from vitrail.study.outcomes import time_problems, weight_problems
from vitrail.study.persons import person_problems, split_problems

CLASS_METRICS = ("balanced_accuracy", "accuracy", "f1", "auc", "log_loss", "brier", "f1_event")
NUMBER_METRICS = ("rmse", "mae", "r2")
TIME_METRICS = ("c_index", "uno_c", "integrated_brier", "time_log_loss")
METRICS = {"classes": CLASS_METRICS, "number": NUMBER_METRICS, "time": TIME_METRICS}  # by the kind of target
PROTOTYPES = "prototypes"  # the kind of network


def inconsistencies(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    """What types cannot say. Looks at raw values and passes over those that are of a wrong type."""
    sections = (raw.get(section) for section in ("target", "features"))
    target, features = (section if isinstance(section, Mapping) else {} for section in sections)
    yield from _target_problems(target, features, raw, place)
    images = raw.get("images")
    if images is None and isinstance(raw.get("features", {}), Mapping) and not features:
        hint = "Add a [features.NAME] section for each column, or [images] for pictures."
        yield Problem(place("features"), "there are no features.", hint)
    if images is not None:
        yield from _picture_problems(images, features, target, place)
    dummies = set()
    for name, feature in features.items():
        if isinstance(feature, Mapping):
            yield from _feature_problems(str(name), feature, place)
            if feature.get("kind") == "categorical" and isinstance(feature.get("categories"), list | tuple):
                dummies |= {f"{name}={canon(c)}" for c in feature["categories"]}
    counts = Counter(str(a) for f in features.values() if isinstance(f, Mapping) for a in _listed(f.get("aliases", ())))
    for alias, times in counts.items():
        if alias in features or alias == target.get("column") or times > 1:
            what = f"the alias {alias!r} names more than one column."
            yield Problem(place("features"), what, "A column has one meaning: remove one of them.")
    for name in dummies & set(features):
        hint = "Rename one of the two."
        yield Problem(place("features", name), "a category of another feature has this name in the model.", hint)
    yield from _party_problems(raw, target, features, place)
    yield from _method_problems(raw, place)
    yield from _remote_problems(raw, place)
    yield from _refit_problems(raw, place)
    yield from _share_problems(raw, place)
    energy = raw.get("energy", {})
    if isinstance(energy, Mapping) and energy.get("grid") is not None and energy.get("watts") is None:
        what = "CO2 is worked out from energy, and no `watts` are stated."
        yield Problem(place("energy", "grid"), what, "State the watts of one busy core too, or remove it.")
    yield from _undersampling_problems(raw, target, place)
    network = raw.get("network", {})
    if isinstance(network, Mapping):
        yield from _network_problems(network, images, place)
        if network.get("hazards") and target.get("kind") != "time":
            what = "hazards are for a time to an event, but the target is of another kind."
            yield Problem(place("network", "hazards"), what, "Remove it.")
    hidden = network.get("hidden", (1,)) if isinstance(network, Mapping) else (1,)
    if isinstance(hidden, list | tuple) and any(isinstance(h, int) and h < 1 for h in hidden):
        yield Problem(place("network", "hidden"), f"layers need at least one unit, got {list(hidden)}.", "Correct it.")
    bedside = raw.get("bedside", {})
    tells_risks = isinstance(bedside, Mapping) and bedside.get("tell") is True
    if tells_risks and (target.get("kind", "classes") != "classes" or raw.get("parties")):
        why = "this needs a target of classes and a study without parties."
        yield Problem(place("bedside", "tell"), why, "Write tell = false.")
    seeds = raw.get("seeds", (1,))
    if isinstance(seeds, list | tuple):
        if not seeds or len({repr(s) for s in seeds}) < len(seeds):
            yield Problem(place("seeds"), f"expected different whole numbers, got {list(seeds)}.", "Correct the list.")
        elif any(isinstance(s, int) and not 0 <= s < 2**63 for s in seeds):
            yield Problem(place("seeds"), "expected whole numbers from 0 to 2^63 - 1.", "Correct the list.")
    paper = raw.get("paper", "")
    if isinstance(paper, str) and paper and paper not in PROTOCOLS:
        yield Problem(place("paper"), f"there is no protocol of a paper called {paper!r}.", nearest(paper, PROTOCOLS))
    if target.get("threshold") is not None and len(_listed(target.get("classes"))) != 2:
        what = "a threshold is for a target of two classes."
        yield Problem(
            place("target", "threshold"), what, "Remove it: then each site's own shares of the classes are used."
        )
    training = raw.get("training", {})
    kind, metrics = target.get("kind", "classes"), raw.get("metrics", ())
    aims = {"classes": "classes", "number": "a number", "time": "the time to an event"}
    aim = aims.get(kind, "") if isinstance(kind, str) else ""
    if isinstance(training, Mapping) and training.get("loss") == "evidence" and aim and kind != "classes":
        hint = 'Write loss = "likelihood".'
        yield Problem(place("training", "loss"), f"evidence is for classes, but the target is {aim}.", hint)
    if not isinstance(metrics, list | tuple) or not aim:
        return
    valid = METRICS[kind]
    if len({repr(m) for m in metrics}) < len(metrics):
        yield Problem(place("metrics"), f"a metric is listed twice in {list(metrics)}.", "List each once.")
    for m in metrics:
        if m not in valid:
            yield Problem(place("metrics"), f"there is no metric {m!r} for {aim}.", nearest(str(m), valid))
    classes = _listed(target.get("classes"))
    if "f1_event" in metrics and kind == "classes" and classes and len(classes) != 2:
        what = f"f1_event is about one of two classes, but the target has {len(classes)}."
        yield Problem(place("metrics"), what, "Use f1, which is weighted over all classes.")


def _listed(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _method_problems(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    method, parties = raw.get("method", {"name": methods.DEFAULT}), bool(raw.get("parties"))
    table: Mapping[str, Any] = methods.PARTIES if parties else methods.TABLE
    if not isinstance(method, Mapping):
        return
    name, given = method.get("name"), {k: v for k, v in method.items() if k != "name"}
    if "name" not in method:
        yield Problem(place("method"), "'name' is missing.", nearest("", table))
    elif isinstance(name, str) and name not in table and (name in methods.TABLE or name in methods.PARTIES):
        whose = "sites with rows of different people, but the study has parties with columns of the same people"
        whose = whose if parties else "parties with columns of the same people, but the study has no parties"
        yield Problem(place("method", "name"), f"{name} is for {whose}.", f"Valid here: {', '.join(table)}.")
    else:
        for p in methods.problems(name, given, "method", table):
            yield p._replace(where=place(*p.where.split(".", 1)))


def _remote_problems(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    """What sites find out beside the run: [verdict] after it, [transfer] before it."""
    protect, method = raw.get("protect", {}), raw.get("method", {})
    protect = protect if isinstance(protect, Mapping) else {}
    name = method.get("name") if isinstance(method, Mapping) else None
    if raw.get("verdict") is None and raw.get("transfer") is None:  # a method's module takes a second to load
        return
    kind = methods.TABLE.get(name) if isinstance(name, str) and not raw.get("parties") else None
    for section, asks, budget, rival in (
        ("verdict", "a verdict compares joining with training alone", "every fold would spend", "compare"),
        (
            "transfer",
            "a transfer tries the models of sites at each other",
            "models that travel would spend",
            "transfer",
        ),
    ):
        if raw.get(section) is None:
            continue
        if raw.get("parties"):
            yield Problem(place(section), f"{asks}, which parties cannot do.", "Remove it.")
        for key in [k for k in ("rows", "sites") if protect.get(k) is not None]:
            what = f"{budget} the budget of protect.{key} once more."
            yield Problem(place(section), what, f"Remove one of the two; vitrail {rival} simulates without noise.")
        if kind is not None and not kind.catalogue.federated:
            what = f"with {kind.catalogue.title} no site trains with others, so there is nothing to judge."
            yield Problem(place(section), what, "Remove it, or change the method.")
    transfer = raw.get("transfer")
    fixed = protect.get("sum") in ("groups", "two servers")
    if isinstance(transfer, Mapping) and transfer.get("user") and fixed:
        what = f'with sum = "{protect["sum"]}" the sites of a total are fixed, but a user trains with those it chose.'
        yield Problem(place("transfer", "user"), what, 'Remove it, or write sum = "plain" or "masked".')


def _share_problems(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    share, protect, training = raw.get("share"), raw.get("protect", {}), raw.get("training", {})
    if not isinstance(share, Mapping):
        return
    least, most = share.get("least", 0.0), share.get("most", 1.0)
    if all(isinstance(v, int | float) for v in (least, most)) and least > most:
        what = f"no share is at least {least} and at most {most}."
        yield Problem(place("share", "least"), what, "Write a smaller `least`, or a larger `most`.")
    if raw.get("parties"):
        yield Problem(place("share"), "parties hold columns of the same people, and no shares of rows.", "Remove it.")
    if isinstance(protect, Mapping) and protect.get("sum") in ("groups", "two servers"):
        what = f"shares are looked at with a sum that is plain or masked, but it is {protect['sum']!r}."
        yield Problem(place("share"), what, "Remove one of the two.")
    later = ["verdict"] * (raw.get("verdict") is not None)
    later += ["training.refit"] * (isinstance(training, Mapping) and training.get("refit") is True)
    for key in later:
        what = f"the trainings after the run, which {key} asks for, look at no shares."
        yield Problem(place("share"), what, "Remove one of the two.")


def _refit_problems(raw: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    training, protect = raw.get("training", {}), raw.get("protect", {})
    if not isinstance(training, Mapping) or training.get("refit") is not True:
        return
    if raw.get("parties"):
        what = "training once more on all people is not available with parties."
        yield Problem(place("training", "refit"), what, "Write refit = false.")
    for key in ("rows", "sites"):
        if isinstance(protect, Mapping) and protect.get(key) is not None:
            what = f"training once more on all rows would spend the budget of protect.{key} twice."
            yield Problem(place("training", "refit"), what, "Write refit = false, or remove the noise.")


def _undersampling_problems(
    raw: Mapping[str, Any], target: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    training, protect = raw.get("training", {}), raw.get("protect", {})
    if not isinstance(training, Mapping) or training.get("class_weights") != "undersample":
        return
    reasons = {
        "only classes can be undersampled, but the target is of another kind": target.get("kind", "classes")
        != "classes",
        "parties train on the people they have in common, of whom none can be left out": bool(raw.get("parties")),
        "one row of the rarest class decides how many others are trained on, but protect.rows counts each row once":
        isinstance(protect, Mapping) and protect.get("rows") is not None,
    }  # fmt: skip
    for why in (why for why, wrong in reasons.items() if wrong):
        yield Problem(
            place("training", "class_weights"), f"{why}.", 'Write class_weights = "inverse" or "none" instead.'
        )


def _party_problems(
    raw: Mapping[str, Any], target: Mapping[str, Any], features: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    parties = raw.get("parties", {})
    if not parties and raw.get("match") is not None:
        hint = 'Add [parties.NAME] with role = "host" and another with role = "guest", or remove it.'
        yield Problem(place("match"), "there are no parties to match.", hint)
    if not isinstance(parties, Mapping) or not parties:
        return
    roles = [party.get("role") for party in parties.values() if isinstance(party, Mapping)]
    if roles.count("host") != 1:
        what = f"expected one host, who has the target, got {roles.count('host')}."
        yield Problem(place("parties"), what, 'Write role = "host" at one party, role = "guest" at the others.')
    if "guest" not in roles:
        yield Problem(place("parties"), "there is no guest.", 'Add [parties.NAME] with role = "guest".')
    for key, what in (("images", "pictures"), ("site_column", "a site column")):
        if raw.get(key):
            yield Problem(place(key), f"a study with parties has no {what.removeprefix('a ')}.", "Remove it.")
    for name, party in parties.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_. -]*", str(name)):
            what = "a party's name is also a file name: use only letters, digits, spaces and - _ ."
            yield Problem(place("parties", name), what, "Rename it.")
        if not isinstance(party, Mapping):
            continue
        column, host = party.get("id"), party.get("role") == "host"
        if column == "":
            yield Problem(place("parties", name, "id"), "expected a column's name, got none.", "Name it.")
        if host and isinstance(column, str) and column in features:
            yield Problem(place("features", column), f"the id of {name} is also a feature.", "Remove this section.")
        if host and column and column == target.get("column"):
            yield Problem(place("parties", name, "id"), "the id is the target.", "Name another column.")
        for key in (key for key in GUESTS_OWN if host and key in party and not _is_default(key, party[key])):
            yield Problem(place("parties", name, key), f"only a guest has the key {key}.", "Remove it.")


def _is_default(key: str, value: Any) -> bool:
    """A study that was parsed before names what it was not given."""
    default = Party(role="host", id="?").model_dump()[key]
    return bool(value == default)


def _target_problems(
    target: Mapping[str, Any], features: Mapping[str, Any], raw: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    column, site_column = target.get("column"), raw.get("site_column", "")
    if isinstance(column, str) and column in features:
        yield Problem(place("features", column), "the target is also a feature.", "Remove this section.")
    if isinstance(site_column, str) and site_column and site_column in features:
        yield Problem(place("features", site_column), "the site column is also a feature.", "Remove this section.")
    if site_column and site_column == column:
        yield Problem(place("site_column"), "the site column is the target.", "Name another column.")
    classes, kind = target.get("classes", ()), target.get("kind", "classes")
    yield from weight_problems(raw, target, features, place)
    yield from person_problems(raw, target, features, place)
    yield from split_problems(raw, target, features, place)
    yield from time_problems(target, features, raw, place)
    if not isinstance(classes, list | tuple) or not target:
        return
    if kind == "number":
        if classes or target.get("positive") is not None:
            hint = 'Remove classes and positive, or write kind = "classes".'
            yield Problem(place("target"), "a number has no classes.", hint)
        return
    if kind != "classes":
        return
    names = [canon(c) for c in classes]
    if len(names) < 2:
        yield Problem(place("target", "classes"), f"expected two or more classes, got {list(classes)}.", "List them.")
    elif len(set(names)) < len(names):
        yield Problem(place("target", "classes"), f"a class is listed twice in {list(classes)}.", "List each once.")
    positive = target.get("positive")
    if positive is not None and names and canon(positive) not in names:
        what = f"{positive!r} is not one of the classes {list(classes)}."
        yield Problem(place("target", "positive"), what, nearest(canon(positive), names))


def _feature_problems(name: str, feature: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    def tell(key: str, what: str, hint: str) -> Problem:
        return Problem(place("features", name, key), what, hint)

    kind, categories = feature.get("kind"), feature.get("categories", ())
    bounds, missing = feature.get("range"), feature.get("missing", ())
    if isinstance(bounds, list | tuple) and len(bounds) == 2 and all(_is_number(b) for b in bounds):
        if not bounds[0] < bounds[1]:
            what = f"expected [low, high] with low < high, got {list(bounds)}."
            yield tell("range", what, "Swap or correct them.")
        if kind in ("binary", "categorical"):
            yield tell("range", f"a {kind} feature has no range.", "Remove it, or list categories.")
    if not isinstance(categories, list | tuple) or not isinstance(missing, list | tuple):
        return
    levels, listed = [canon(c) for c in categories], list(categories)
    if kind == "numeric" and levels:
        hint = 'Remove them, or write kind = "categorical".'
        yield tell("categories", "a numeric feature has no categories.", hint)
    if kind == "binary" and len(levels) != 2:
        yield tell("categories", f"a binary feature needs two categories, got {listed}.", "List both.")
    if kind == "categorical" and len(levels) < 2:
        yield tell("categories", f"a categorical feature needs two or more categories, got {listed}.", "List them.")
    if len(set(levels)) < len(levels):
        yield tell("categories", f"a category is listed twice in {listed}.", "List each once.")
    for code in missing:
        if canon(code) in levels:
            yield tell("missing", f"{code!r} is a category and also means missing.", "Remove one of the two.")


def _picture_problems(
    images: Any, features: Mapping[str, Any], target: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    if features:
        yield Problem(place("features"), "a study of pictures cannot have feature columns.", "Remove these sections.")
    if target.get("kind", "classes") != "classes":
        what = f"a study of pictures predicts classes, but the target is a {target['kind']}."
        yield Problem(place("target", "kind"), what, 'Write kind = "classes" and list them.')
    if not isinstance(images, Mapping):
        return
    if images.get("column", "picture") == target.get("column"):
        yield Problem(place("images", "column"), "the column of pictures is the target.", "Name another.")
    size = images.get("size")
    if isinstance(size, list | tuple) and any(isinstance(n, int) and not 8 <= n <= 1024 for n in size):
        what = f"expected height and width from 8 to 1024 pixels, got {list(size)}."
        yield Problem(place("images", "size"), what, "Correct it.")


def _network_problems(network: Mapping[str, Any], images: Any, place: Callable[..., str]) -> Iterable[Problem]:
    kind, hidden, pictures = network.get("kind", "mlp"), network.get("hidden", (128, 64)), images is not None
    fitting = [name for name, net in nets.TABLE.items() if net.pictures == pictures]
    if not isinstance(kind, str):
        return
    if kind not in nets.TABLE:
        yield Problem(place("network", "kind"), f"there is no network {kind!r}.", nearest(kind, fitting))
    elif kind not in fitting:
        whose = "columns, but the study is of pictures" if pictures else "pictures, but the study is of columns"
        hint = f"Write kind = {' or '.join(map(repr, fitting))}."
        yield Problem(place("network", "kind"), f"{kind} is for {whose}.", hint)
    elif pictures:
        if network.get("dropout", 0):
            yield Problem(
                place("network", "dropout"), f"the network {kind} does not have this key.", "Write dropout = 0.0."
            )
        size = images.get("size") if isinstance(images, Mapping) else None
        if kind == "cnn" and isinstance(size, list | tuple) and any(isinstance(n, int) and 8 <= n < 16 for n in size):
            what = f"cnn needs pictures of at least 16 x 16 pixels, but they are {list(size)}."
            yield Problem(place("network", "kind"), what, 'Agree on a larger size, or write kind = "resnet18".')
        if kind == "cnn" and isinstance(hidden, list | tuple) and len(hidden) != 2:
            what = (
                f"expected two layers, as cnn has two linear layers between convolutions and head; got {list(hidden)}."
            )
            yield Problem(place("network", "hidden"), what, "Give two numbers of units.")
    if kind == PROTOTYPES:
        yield from _prototype_problems(network, images if isinstance(images, Mapping) else {}, place)
    elif kind in nets.TABLE:
        for k in ("prototypes", "latent", "weights", "frozen", "backbone", "similarity"):
            if network.get(k):
                yield Problem(
                    place("network", k),
                    f"the network {kind} does not have this key.",
                    f'Remove it, or write kind = "{PROTOTYPES}".',
                )


def _prototype_problems(
    network: Mapping[str, Any], images: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    size, weights, frozen = images.get("size"), network.get("weights"), network.get("frozen")
    sides = [n for n in size if isinstance(n, int)] if isinstance(size, list | tuple) else []
    backbone = network.get("backbone") or "efficientnet_lite0"
    if network.get("backbone") and not weights:
        what = f"{backbone} needs weights from a file: it is not trained from nothing."
        yield Problem(place("network", "backbone"), what, "Name the file under weights, or remove this key.")
    if weights and any(n % 32 or n < 32 for n in sides):
        what = f"{backbone} needs sides that are multiples of 32 pixels, but the pictures are {list(sides)}."
        yield Problem(place("images", "size"), what, 'Agree on multiples of 32, such as 224, with fit = "resize".')
    if weights and images.get("normalise", "centred") != "centred":
        what = "these weights were trained on pictures scaled from -1 to 1."
        yield Problem(place("images", "normalise"), what, 'Write normalise = "centred", or leave it out.')
    if frozen and not weights:
        what = "frozen convolutions need weights from a file: without training they recognise nothing."
        yield Problem(place("network", "frozen"), what, "Name a file of weights, or write frozen = false.")
    if frozen and images.get("augment"):
        what = "frozen convolutions read each picture only once, so pictures cannot be augmented anew for each batch."
        yield Problem(place("images", "augment"), what, "Remove it, or write frozen = false under [network].")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
