"""Numbers and names as pages write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from vitrail.core.text import number, several
from vitrail.metrics.scores import FEW, RARE

# words and unit; a metric that is not here is written as it is named
METRICS = {
    "balanced_accuracy": ("balanced accuracy", "share"),
    "accuracy": ("accuracy", "share"),
    "f1": ("F1, weighted over classes", "0 to 1"),
    "f1_event": ("F1 of the event", "0 to 1"),
    "auc": ("area under the ROC curve", "0 to 1"),
    "log_loss": ("log loss", "per case"),
    "balanced_log_loss": ("log loss, classes counted alike", "per case"),
    "brier": ("Brier score", "0 to 1"),
    "squared_error": ("squared error", "unit of the target, squared"),
    "rmse": ("root mean squared error", "unit of the target"),
    "mae": ("mean absolute error", "unit of the target"),
    "r2": ("variance explained (R²)", "share"),
    "c_index": ("Harrell’s C, pairs in the right order", "share"),
    "uno_c": ("Uno’s C, pairs in the right order", "share"),
    "integrated_brier": ("Brier score, mean over the intervals", "0 to 1"),
    "time_log_loss": ("log loss of the time to the event", "per case"),
}
# the name, on pages, of whoever knows nothing: the most common class, the mean, or the life table of all
SAME = "the same answer every time"
FEW_MARK = "†"  # behind the name of a site whose scores stand on few rows
WHY_NOT = {  # of so many rows
    "auc": "{} of one class, and the area under the ROC curve compares {}s of two.",
    "f1_event": "{} without the event, and its F1 needs {}s with it.",
    "r2": "{} with the same target, and R² is about how {}s differ in it.",
    **dict.fromkeys(
        ("c_index", "uno_c"), "{} without an event before another’s end, and C is about which of two {}s comes first."
    ),
}
WHY_UNDEFINED = {
    "auc": "the area under the ROC curve needs {}s of at least two classes on the hold-out",
    "f1_event": "the F1 of the event needs hold-out {}s with the event",
    "r2": "R² needs hold-out {}s that differ in the target",
    **dict.fromkeys(("c_index", "uno_c"), "C needs an event among the hold-out {}s, before the end of another"),
}
ANSWERS = {"yes": "yes: gains", "no": "no: loses", "no harm": "no harm", "cannot tell": "cannot tell"}
VERDICT_CLASS = {"yes": "gain", "no": "loss", "no harm": "calm"}


class LayerWords(NamedTuple):
    """How pages speak of a layer that every site keeps for itself."""

    title: str
    noun: str  # what a value is
    neutral: float  # the value that changes nothing
    column: str
    see: str  # what the colours mean
    silent: str = "did not publish"  # of a site without values


LAYERS = {
    "b_in": LayerWords(
        "shift of each feature",
        "shift",
        0.0,
        "feature",
        "Red: the model adds to this feature at this site, in the unit in which the network gets it; blue: it takes "
        "away; grey: no shift.",
    ),
    "w_in": LayerWords(
        "stretch of each feature",
        "stretch",
        1.0,
        "feature",
        "Red: the model stretches this feature at this site (more than 1 times); blue: it shrinks it, and below 0 "
        "turns it round; grey: no stretch.",
    ),
    "b_out": LayerWords(
        "shift of each answer",
        "shift",
        0.0,
        "answer",
        "Red: the model adds to this answer at this site, in the unit of the network's output; blue: it takes away; "
        "grey: no shift.",
    ),
    "w_out": LayerWords(
        "stretch of each answer",
        "stretch",
        1.0,
        "answer",
        "Red: the model stretches this answer at this site (more than 1 times); blue: it shrinks it, and below 0 "
        "turns it round, as where labels are swapped; grey: no stretch.",
    ),
}


Tone = Literal["gain", "loss", "warn", "unsure", "calm"]  # the colour of a status


class Standing(NamedTuple):
    """How something stands, for the first screen of a page: a status in words and colour, and a sentence about it."""

    name: str
    status: str
    kind: Tone
    words: str = ""
    anchor: str = ""  # of the section that has more of it


class Interval(NamedTuple):
    """A number and its interval; low and high are NaN where none is known."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def spoken(interval: Interval, write: Callable[[float], str] = number) -> str:
    """A number with its interval in words: 0.612 (95 % interval 0.580 to 0.644)."""
    text = write(interval.value)
    if interval.known:
        text += f" (95 % interval {write(interval.low)} to {write(interval.high)})"
    return text


def metric_name(metric: str) -> str:
    """The metric in plain words: balanced accuracy."""
    return METRICS.get(metric, (metric.replace("_", " "), ""))[0]


def metric_words(metric: str) -> str:
    """The metric in plain words with its unit: balanced accuracy (share)."""
    unit = METRICS[metric][1] if metric in METRICS else ""
    return f"{metric_name(metric)} ({unit})" if unit else metric_name(metric)


def why_undefined(metric: str, word: str) -> str:
    """`word`: what a row is."""
    return WHY_UNDEFINED.get(metric, "the hold-out {}s do not define this metric").format(word)


def why_not(metric: str, rows: int, word: str) -> str:
    """Why these hold-out rows do not define the metric; `word`: what a row is.

    >>> why_not("auc", 7, "row")
    'it has 7 hold-out rows, all of one class, and the area under the ROC curve compares rows of two.'
    """
    if not rows:
        return f"it has no hold-out {word}s."
    held = f"it has {several(rows, f'hold-out {word}')}"
    return WHY_NOT.get(metric, "{}, which do not define this.").format(
        f"{held}, all" if metric in WHY_NOT else held, word
    )


def few_words(few: Mapping[str, str], word: str) -> Markup:
    """What the mark behind some sites says, and which they are; nothing without any."""
    if not few:
        return Markup()
    sites = [Markup("{} ({})").format(name(site), rows) for site, rows in few.items()]
    bar = f"fewer than {FEW} hold-out {word}s, or fewer than {RARE} of their rarest class"
    text = "{} Few {}s: the scores of {} would differ with a few other {}s. Few means {}."
    return Markup(text).format(FEW_MARK, word, listed(sites), word, bar)


def marked(site: str, few: Container[str]) -> str:
    """The name, with the mark of those that stand on few rows."""
    return f"{site} {FEW_MARK}" if site in few else site


def opening(site: str) -> Markup:
    """The name of a site at the beginning of a sentence: one in lower case would look like a typing error.

    >>> opening("va"), opening("Bern")
    (Markup('Site <b>va</b>'), Markup('<b>Bern</b>'))
    """
    return Markup("Site {}").format(name(site)) if site[:1].islower() else name(site)


def name(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)


def listed(items: Sequence[str], most: int = 5) -> Markup:
    """a, b and c; a long list is cut and the rest counted."""
    shown = list(items) if len(items) <= most + 1 else [*items[:most], f"{len(items) - most} others"]
    head = Markup(", ").join(shown[:-1])
    return Markup("{} and {}").format(head, shown[-1]) if len(shown) > 1 else Markup().join(shown)
