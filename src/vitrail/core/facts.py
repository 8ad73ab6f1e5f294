"""What a coordinator may show, and what facts can mean.

A method declares for each fact its axes, what it means and whether every round's is kept. Pages, tables and tests look
for meanings, never for a fact's name. A meaning without a figure is kept in the run all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Fact(NamedTuple):
    """A tensor that a coordinator may show: what its axes are, what it means, and whether every round's is kept."""

    value: Tensor
    axes: tuple[str, ...] = ()  # "site" and "user" are put in the run's order of sites; others are labels
    means: str = ""
    every: bool = False  # kept for every round, [round, ...], not only the last


Facts = dict[str, Fact]
"""What a merge shows, by name."""

SITES = ("site", "user")  # axes along which sites stand

ROUND = "round"  # the number of each round of which facts are kept
AGREED = "which sites agreed to show what was asked for"  # [site] bool
"""Meaning: a truth value for each site."""
INPUT_SHIFT = "what a site's private layer adds to each input"  # [site, input]
INPUT_FACTOR = "what a site's private layer multiplies each input by"  # [site, input]
OUTPUT_SHIFT = "what a site's private layer adds to each output"  # [site, output]
OUTPUT_FACTOR = "what a site's private layer multiplies each output by"  # [site, output], or one for all
ENDS = {  # and the parameter of a framed network (core/task.py) that it is
    INPUT_SHIFT: "input.shift",
    INPUT_FACTOR: "input.scale",
    OUTPUT_SHIFT: "output.shift",
    OUTPUT_FACTOR: "output.scale",
}

TRUST = "how far a user trusts a site, 1 fully, 0 no more"  # [user, site]
"""Meaning: a number for each user and site."""
SHARE = "the share of a user's model that a site gave"  # [user, site], sums to 1 for each user
"""Meaning: a number for each user and site; those of a user sum to 1."""
DISTANCE = "how far a site's update is from the user's own, relative to its length"  # [user, site]
VANISHED = "the user's own update was nothing"  # [user] bool
STOPPED = "the user's model stands still"  # [user] bool
VALIDATION = "the user's loss on rows that it set aside"  # [user]
GRADIENTS = "gradients computed, for the users and for models beside"  # [2]
TO_ALONE = "how far the user's model is from one trained alone"  # [user]
TO_SHARED = "how far the user's model is from the model of all sites"  # [user]
BETWEEN = "how far the model of all sites is from one trained alone"  # [user]
UNCERTAINTY = "how unsure a site's model is of the rows it was trained on, 0 sure, 1 knows nothing"  # [site]
CHOSEN = "whose models were mixed into those that sites were given"  # [site] bool
SURE = "which sites were of the surer half, and chosen for it"  # [site] bool
SIMILARITY = "how alike the models of two sites are: the cosine of their parameters"  # [user, site]

OUTLYING = "how many times as far from the centre of all reports a site's lies as the median report"  # [site]

GROUP = "the group a site is in"  # [site] int; a number stands for the same group in all rounds in which it is used
GROUP_SPLIT = "the group that a site was in was split in this round"  # [site] bool
GROUP_MOVED = "how long the mean update of the site's group is"  # [site], before a split
GROUP_LONGEST = "how long the longest update in the site's group is"  # [site], before a split
ALIKE = "the cosine of the angle between a user's update and a site's"  # [user, site]
MIXED = "how much of a site's core model is mixed into a user's model, also less than nothing"  # [user, site]

LEFT_OUT = "a site's loss per row, on rows that were left out"  # [site]
ALONE_LEFT_OUT = "that of a model trained alone, on rows that were left out"  # [site]
CHOICE = "what all sites together chose: groups, constants of one's own, the share of one's own model"  # [3]
COSTS = "the loss per row of each alternative, on rows that were left out"  # [groups, constants, own share]
TRIED = "the shares of one's own model that were tried"  # [own share]
MIX = "what all sites agreed to mix: epochs of tuning the shared model, the share of one's own"  # [2]
MIX_COSTS = "the loss per row of each mix, on rows that were left out"  # [epochs, own share]
MIX_EPOCHS = "the epochs of tuning that were tried"  # [epochs]
AGAINST_ALONE = "of each mix less alone, per row left out, over sites: how many, sum, squares, squared errors"
# [4, epochs, own share]
ERROR_LEFT_OUT = "the error of the difference of a site's loss to that of a model trained alone"  # [site]

ALONE_WEIGHT = "weights of a linear model trained alone"  # [site, input, output]
ALONE_BIAS = "constants of a linear model trained alone"  # [site, output]

# Of networks with prototypes. Nothing is told of a class of which a site has too few pictures, or where it refused: 0.
TRAVEL = "a user's model on a site's hold-out pictures of a class: how many it tells right, and how many there are"
# [user, site, class, 2]
MARGIN = (
    "how sure a user's model is of a site's hold-out pictures of a class, from 0 to 1 each and summed; and how many"
)
# [user, site, class, 2]
CUT = 4.0  # log-odds that are 0 and 1 there
PIECE = "how far the most telling piece of a site's pictures of a class convinces a user's model: a rise in log-odds"
# [site, user, class]
EASY = "the mean loss of a site's pictures of a class after the warm-up"  # [site, class]
PROTOTYPE_DISTANCE = "how far a site's own prototypes of a class lie from the shared ones"  # [site, class]
PROTOTYPES_KEPT = "how much of its own prototypes of a class a site keeps beside the shared ones"  # [site, class]
RELEASED = "a site's prototypes after training, less 1/2, as it agreed to show them"  # [site, prototype, number]
RELEASED_APART = "how far a site's shown prototypes of a class lie from the mean of the others'"  # [site, class]

# The models that a site may hold, by what each is to it
OWN = "own"
"""The model with which a site predicts."""
SHARED = "shared"
"""The model of all sites."""
ALONE = "alone"
"""A model that is trained on a site's rows alone."""
RECEIVED = "received"
"""A model made of others' models for this site, as it was before training on its rows."""


def find_value(facts: Mapping[str, Fact], means: str) -> Tensor | None:
    """The fact that means this, if there is one.

    >>> find_value({}, TRUST) is None
    True
    """
    return next((f.value for f in facts.values() if f.means == means), None)


def private_layers_of(facts: Mapping[str, Fact]) -> dict[str, Tensor]:
    """The private layers among the facts, by the name of the parameter that each is."""
    return {name: value for means, name in ENDS.items() if (value := find_value(facts, means)) is not None}


def in_order(fact: Fact, at: Tensor, axes_before: int = 0) -> Fact:
    """With every axis of sites put in the order `at`; `axes_before` the declared ones stand others (rounds)."""
    value = fact.value
    for axis, name in enumerate(fact.axes):
        if name in SITES:
            value = value.index_select(axis + axes_before, at.to(value.device))
    return fact._replace(value=value)
