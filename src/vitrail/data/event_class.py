"""Of two classes, which one is the event: the one that risks, calibration and the F1 of the event are about."""

from __future__ import annotations

from vitrail.data.schema import Target
from vitrail.storage.toml import toml_value


def event_sentence(target: Target) -> str:
    """Which class is the event, in a sentence; "" where the target is not one of two classes."""
    if len(target.levels) != 2:
        return ""
    return f"The event is {toml_value(target.levels[1])} in {toml_value(target.column)}."


def decision_sentence(target: Target) -> str:
    """From which risk on the event is predicted, in a sentence; "" where the target is not one of two classes."""
    if len(target.levels) != 2:
        return ""
    start = "Accuracy, balanced accuracy and F1 count the event as predicted"
    if target.threshold is None:
        return f"{start} where its risk is at least the site's own event rate in training."
    return f"{start} where its risk is at least {100 * target.threshold:g} %."


def draft_notes(target: Target) -> list[str]:
    """For a drafted study: which class was taken as the event, why, and how to name the other one."""
    if len(target.levels) != 2:
        return []
    other = next(c for c in target.classes if c != target.positive)
    return [
        (
            f"{event_sentence(target)} Risks and the F1 of the event are about it. It was chosen because it comes "
            f"last in sorted order; if the other class is the event, write positive = {toml_value(other)} under "
            "[target]."
        )
    ]
