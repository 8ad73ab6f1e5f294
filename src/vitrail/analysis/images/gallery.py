"""A site's own pictures beside what its model says of them; at the site alone, and nothing of it leaves.

Which pictures: those that the model gets wrong, the surest first, held out and trained on apart (of the latter the
label may be wrong); those of which it is least sure; and of each class some that it gets right, about as sure as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.analysis.images.picture_evidence import Case
from vitrail.analysis.images.prototype_evidence import PrototypeEvidence
from vitrail.analysis.images.prototype_removal import CANNOT, PrototypeRemoval

SHOWN = 12  # pictures of a gallery, at most
TYPICAL = 6  # of a class
CLASSES = 6  # of which typical ones are shown, the largest
HELD, TRAINED, ALL = "held out", "trained on", "all"

Floats = NDArray[np.float64]


class Shot(NamedTuple):
    """One picture, and what the model says of it."""

    name: str  # its file, or its row
    picture: NDArray[np.uint8]  # [channel, height, width]
    label: str
    said: str  # the class that the model finds most likely
    share: float  # its probability
    unsure: float  # from 0, sure, to 1, knows nothing
    held_out: bool | None  # no training saw it; None where that is not known

    @property
    def right(self) -> bool:
        return self.label == self.said


class Gallery(NamedTuple):
    title: str
    words: str
    shots: tuple[Shot, ...]
    of: int  # how many there are, also those that are not shown


class Album(NamedTuple):
    """All that a site sees of itself."""

    site: str
    study: str
    target: str
    classes: tuple[str, ...]
    same: bool  # whether these are the pictures that the run saw
    counts: dict[str, NDArray[np.int64]]  # held out, trained on, or all -> [label, said]
    galleries: tuple[Gallery, ...]
    seen: PrototypeEvidence | None = None  # what the models look at
    removal: PrototypeRemoval | None = None  # what the model says without some prototypes

    @property
    def pictures(self) -> int:
        return int(sum(table.sum() for table in self.counts.values()))

    def sentences(self) -> list[str]:
        """How often the model is right, and what to look at first."""
        out = []
        for which, table in self.counts.items():
            right, all_ = int(table.diagonal().sum()), int(table.sum())
            description = {HELD: "that were not used in training", TRAINED: "that it was trained on"}.get(which, "here")
            out.append(
                f"Of {all_} pictures {description}, the model classifies {right} correctly "
                f"({100 * right / max(1, all_):.0f} %)."
            )
        return out + (self.seen.sentences() if self.seen else [])


def make_album(
    site: str,
    study: str,
    target: str,
    classes: Sequence[str],
    names: Sequence[object],
    pictures: NDArray[np.uint8],
    labels: NDArray[np.int64],
    answers: Floats,
    unsure: Floats,
    held_out: NDArray[np.bool_] | None,
) -> Album:
    """pictures [row, channel, height, width]; labels [row]; of the site's own model answers [row, class] and unsure
    [row]. `held_out` [row] is None where these are other pictures than the run saw."""
    predicted = answers.argmax(1)
    shots = [
        Shot(
            picture_title(name),
            pictures[i],
            classes[labels[i]],
            classes[predicted[i]],
            float(answers[i, predicted[i]]),
            float(unsure[i]),
            None if held_out is None else bool(held_out[i]),
        )
        for i, name in enumerate(names)
    ]
    parts = {ALL: np.ones(len(shots), bool)} if held_out is None else {HELD: held_out, TRAINED: ~held_out}
    counts = {}
    for which, here in parts.items():
        counts[which] = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts[which], (labels[here], predicted[here]), 1)
    galleries = (*_wrong(shots), _least_sure(shots), *_typical(shots, classes))
    shown = tuple(g for g in galleries if g.of)
    return Album(site, study, target, tuple(classes), held_out is not None, counts, shown)


def picture_title(name: object) -> str:
    """A picture by its file, or by its row."""
    return name if isinstance(name, str) else f"row {name}"


def _wrong(shots: list[Shot]) -> Iterable[Gallery]:
    """The surest first."""
    wrong = sorted((s for s in shots if not s.right), key=lambda s: s.unsure)
    held = [s for s in wrong if s.held_out is not False]
    trained = [s for s in wrong if s.held_out is False]
    yield _gallery(
        "Wrong, the most certain first",
        "The model predicts another class than the label"
        + ("; these pictures were not used in training. " if any(s.held_out for s in held) else ". ")
        + (
            "Look for what they have in common: a device, a cut, a mark, an unusual patient. Or the label may be wrong."
        ),
        held,
    )
    yield _gallery(
        "Wrong, although the model was trained on them",
        (
            "The model was trained on these pictures with these labels, but predicts another class; the most "
            "certain come first. Such a label may be wrong: ask somebody who can read the pictures to look "
            "at these first. An unusual picture or too little training has the same effect."
        ),
        trained,
    )


def _least_sure(shots: list[Shot]) -> Gallery:
    held = [s for s in shots if s.held_out is not False]  # of what it learned it is surer than of what is to come
    unsure = sorted(held, key=lambda s: -s.unsure)
    words = (
        "A person should decide about these pictures rather than the model. The least certain come "
        "first, right or wrong."
    )
    return _gallery("Least sure", words, unsure)


def _typical(shots: list[Shot], classes: Sequence[str]) -> Iterable[Gallery]:
    """Of each class those whose doubt is nearest to its median."""
    right = {c: [s for s in shots if s.right and s.label == c and s.held_out is not False] for c in classes}
    most = sorted(classes, key=lambda c: -len(right[c]))[:CLASSES]
    for name in (c for c in classes if c in most):
        middle = float(np.median([s.unsure for s in right[name]] or [0.0]))
        usual = sorted(right[name], key=lambda s: abs(s.unsure - middle))
        words = "The model classifies these correctly, with the certainty that is usual for this class."
        yield _gallery(f"Typical: {name}", words, usual, TYPICAL)


def _gallery(title: str, words: str, shots: list[Shot], most: int = SHOWN) -> Gallery:
    return Gallery(title, words, tuple(shots[:most]), len(shots))


def to_text(album: Album, most: int = 5) -> str:
    """For a terminal."""
    lines = [f"This stays at {album.site}.", ""]
    if not album.same:
        lines += [
            (
                "These are not the pictures that the run used, so it is not known on which of them the model was "
                "trained."
            ),
            "",
        ]
    lines += [*album.sentences(), ""]
    if album.removal and album.seen:
        lines += album.removal.sentences(album.seen)
        lines += [
            f"  {metric}: {before} before, {after} after" for metric, before, after in album.removal.score_texts()
        ]
        lines += [CANNOT, ""]
        for c in album.removal.changed[:most]:
            shares = f"{c.before} {c.share_before:.2f} before, {c.after} {c.share_after:.2f} after"
            lines.append(f"  {c.name}: {c.label}, {shares}: {c.verdict}")
        lines += [""] * bool(album.removal.changed)
    for case in album.seen.cases if album.seen else ():
        lines += [*_case_lines(case), ""]
    for gallery in album.galleries:
        lines.append(f"{gallery.title} ({gallery.of})")
        for s in gallery.shots[:most]:
            lines.append(f"  {s.name}: {s.label}, model {s.said} {s.share:.2f}, unsure {s.unsure:.2f}")
        lines.append("")
    return "\n".join(lines).rstrip()


def _case_lines(case: Case) -> list[str]:
    """One picture under each model."""
    lines = [f"{case.name}: {f'label {case.label}' if case.label else 'no label'}, model {case.of}"]
    for view in case.views:
        asked = f"{view.answer.share:.2f}, with the place that decides painted over {view.covered.share:.2f}"
        lines.append(f"  {view.model}: {view.answer.said}; probability of {case.of} {asked}")
        for line in view.lines:
            which = f"{line.part.of}, prototype {line.part.number}"
            lines.append(f"    {which}: {line.alike:.2f} x {line.weight:.2f} = {line.adds:.2f}")
        lines += [f"    all others: {view.rest:.2f}; score of {case.of}: {view.total:.2f}"] if view.lines else []
    return lines
