"""Whom each site learned from, in words. They hold for any method whose facts mean trust, or shares of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.trust import Trust
from vitrail.core.text import number, several
from vitrail.report.text import listed, name


class TrustWording(NamedTuple):
    """How the page speaks of weights; braces take user, site and value, or the sites."""

    fold: str
    cell: str
    own: str
    unknown: str
    matrix: str
    tree: str = ""
    panel: str = ""
    below: str = ""
    counts_own: bool = False  # whether what a site gives itself is one of the weights


TRUSTED = TrustWording(
    "Whom each of the {} trusts",
    "{} trusts {}: {}",
    "{}: itself",
    "{1} never met {0}",
    "Trust of {} in each other",
    "mutual trust",
    "how far {} trusts each site (alpha)",
    "the weight of each site in its model, over the same rounds",
)
GIVEN = TrustWording(
    "Whom each of the {} learned from",
    "{} learned from {}: {}",
    "{}: {} its own",
    "{} had no model of {} to weigh",
    "Weights that {} gave each other",
    "mutual weight",
    "weights given by {}, {}",
    "the weights, which sum to 1: the share of each site in its model, its own among them. At 0 a site gave nothing; "
    "where its own has 1, no other gave anything",
    counts_own=True,
)


def words_of(trust: Trust) -> TrustWording:
    return GIVEN if trust.shares else TRUSTED


def trust_sentences(trust: Trust, order: Sequence[int]) -> list[Markup]:
    """For each user: whom it trusts most and least at the end, or gave most and least weight."""
    values = trust.mean if trust.shares else trust.final
    of = [(user, _others(values, user)) for user in order]
    say = _gave if trust.shares else _trusts
    return [say(trust, user, row) for user, row in of if np.isfinite(row).any()]


def _others(values: np.ndarray, user: int) -> np.ndarray:
    """[site]: the user's, without its own."""
    row: np.ndarray = values[user].copy()
    row[user] = np.nan
    return row


def _gave(trust: Trust, user: int, row: np.ndarray) -> Markup:
    most, least = int(np.nanargmax(row)), int(np.nanargmin(row))
    me, best, worst = (name(trust.sites[i]) for i in (user, most, least))
    if row[most] == 0:
        return Markup("{} learned from nobody: no other site was given weight in any round.").format(me)
    rest = Markup(", least from {} ({})").format(worst, number(row[least], 2)) if row[most] > row[least] else ""
    words = Markup("{} learned {}from {} (mean weight {}){}; its own part: {}.")
    own = number(trust.mean[user, user], 2)
    return words.format(me, "most " if rest else "", best, number(row[most], 2), rest, own)


def _trusts(trust: Trust, user: int, row: np.ndarray) -> Markup:
    most, least = int(np.nanargmax(row)), int(np.nanargmin(row))
    me, best, worst = (name(trust.sites[i]) for i in (user, most, least))
    high, low = number(row[most], 2), number(row[least], 2)
    if row[most] == 0:
        longest = name(trust.sites[int(np.nanargmax(_others(trust.mean, user)))])
        words = Markup("{} ends alone: from round {} on it trusts nobody but itself. Trust in {} lasted longest.")
        return words.format(me, trust.alone_from(user), longest)
    if row[most] == row[least]:
        return Markup("{} trusts {} with {} at the end.").format(me, "the others" if most != least else best, high)
    return Markup("{} trusts {} most ({}) and {} least ({}).").format(me, best, high, worst, low)


def user_sentences(trust: Trust, user: int, judged: bool = False, word: str = "row") -> list[Markup]:
    """What happened to this user on the way; `judged`: it has a loss on rows that it set aside, and `word` is what
    they are."""
    return _weighing(trust, user) if trust.shares else _eroding(trust, user, judged, word)


def _weighing(trust: Trust, user: int) -> list[Markup]:
    out, me = [], name(trust.sites[user])
    weights = np.delete(trust.alpha[:, user], user, axis=1)
    took_part = np.isfinite(weights).any(1)
    if not took_part.any():
        return [Markup("{} never weighed the models of others: it was away.").format(me)]
    some = int((weights[took_part] > 0).any(1).sum())
    words = "In {} of the {} in which {} weighed the models of others, it took something from some of them."
    out.append(Markup(words).format(some, several(int(took_part.sum()), "round"), me))
    never = [trust.sites[i] for i in np.flatnonzero(trust.mean[user] == 0) if i != user]
    if never and some:
        out.append(Markup("It never learned from {}.").format(listed(never)))
    if some and (since := trust.alone_from(user)) is not None:
        out.append(Markup("From round {} on it trained on from its own model alone.").format(since))
    return out


def _eroding(trust: Trust, user: int, judged: bool, word: str) -> list[Markup]:
    out, me = [], name(trust.sites[user])
    gone = [trust.sites[i] for i in np.flatnonzero(trust.final[user] == 0)]
    if gone:
        out.append(Markup("{} no longer learns from {}: their weight is 0.").format(me, listed(gone)))
    if (stop := trust.stop_round(user)) is not None:
        why = f"; the loss on the {word}s it had set aside no longer fell" if judged else ""
        out.append(Markup("{} stopped in round {}: from then on its model no longer changes{}.").format(me, stop, why))
    if many := int(trust.vanished[:, user].sum()):
        words = "In {} the own update of {} was nothing, so that no distance is defined: nobody lost trust then."
        out.append(Markup(words).format(several(many, "round"), me))
    near, far = trust.to_local[-1, user], trust.between[-1, user]
    if math.isfinite(near) and far > 0:
        words = Markup("Before the last round its model was {} from Local and {} from Global; those two were {} apart.")
        out.append(words.format(number(near, 2), number(trust.to_global[-1, user], 2), number(far, 2)))
        if near < 0.1 * far:
            out.append(Markup("It has all but become its local model: joining changed little in the end."))
    return out


def cost(trust: Trust, grows: bool) -> str:
    """What it took, as far as the facts tell; nothing where they do not."""
    n, parts = len(trust.sites), []
    if np.isfinite(trust.gradients).all():
        users, beside = trust.gradients.sum(0)
        each = f"{users / len(trust.rounds):.1f} a round (at most {n} x {n} = {n * n} for each batch)"
        words = f"{several(int(users), 'gradient')} over {several(len(trust.rounds), 'round')} for the models of all "
        words += f"{several(n, 'user')}, {each}"
        words += f"; and {several(int(beside), 'gradient')} for Global and Local beside them" if beside else ""
        parts.append(words)
    if grows:
        parts.append(f"messages hold something for each of the {several(n, 'site')}, so that they grow with every site")
    return "; ".join(parts) + "." * bool(parts)
