"""Whether a site trains with the sites that were chosen: what somebody there said when it joined, or says now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.participants import several_names
from vitrail.study.model import Study


def decision(study: Study, fewest: int = 0, ask: bool = False) -> Callable[[Sequence[str]], bool]:
    """Of those who would train together, itself among them. `fewest`: with fewer it withdraws; `ask`: at a terminal."""
    if (fewest or ask) and study.transfer is None:
        what = "this study chooses nobody to learn from ([transfer] in the study)."
        where = "--confirm-subset" if ask else "--fewest-together"
        raise VitrailError("the site cannot join", [Problem(where, what, "Leave it out.")])
    if ask and not sys.stdin.isatty():
        what = "there is no terminal in which a person could be asked."
        raise VitrailError("the site cannot join", [Problem("--confirm-subset", what, "Use --fewest-together N.")])

    def decide(group: Sequence[str]) -> bool:
        if len(group) < fewest:
            return False
        question = f"These sites would train together: {several_names(group)}. Train with them? Type yes: "
        return not ask or input(question).strip().lower() == "yes"

    return decide
