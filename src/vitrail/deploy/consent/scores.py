"""Scores in the words of the consent form: how they leave, and what they could still tell."""

from __future__ import annotations

from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.model_digests import points
from vitrail.deploy.protocol.score_plan import END, TRAINING
from vitrail.privacy.score_rounding import COARSEST, LARGEST_LOSS, TEN


def scores_leave(agreement: Agreement, stage: str) -> list[str]:
    """How the scores of that stage of the form leave this site."""
    if stage not in (END, TRAINING):
        return []
    out = []
    protect = agreement.study.protect
    if stage == TRAINING and protect.sum != "plain":
        out.append(
            "these scores are part of the masked reports: the coordinator can read their mean over the patients of all "
            "sites, and no site's own"
        )
    if protect.rows is not None:
        return [
            *out,
            "every score is a count of held-out patients under noise of its own, which spends what such a patient has "
            f"of the privacy budget (epsilon {protect.rows.epsilon:g}); the exact numbers stay at this site",
        ]
    if protect.scores == "exact":
        return [*out, "EXACT: this study asks for scores that are not rounded; see below what that can tell"]
    return [
        *out,
        f"every score leaves as a count of patients that is rounded to a multiple of {TEN} or more (of n patients, of "
        "the square root of 2n), up or down by chance, so that it is right on average; the exact numbers stay at "
        "this site. A single site tells no score for which "
        f"{TEN} patients would be more than {COARSEST:g} of its range, and no patient's loss counts for more than "
        f"{LARGEST_LOSS:.1f}",
    ]


def what_scores_tell(agreement: Agreement) -> list[str]:
    """What could still be learned from them."""
    protect = agreement.study.protect
    if protect.scores == "none" or protect.sites:
        return []
    rule = (
        "A coordinator that does not keep to the rules can choose a model so as to find out from its score whether a "
        "person it knows is among your patients. This site therefore scores only the agreed start and models that "
        "continue the one it last trained on, in the order of rounds, each once; whatever else it is asked gets no "
        "number, and this site shows and counts it."
    )
    if points(agreement):
        rule += (
            " At the end every site signs which models it scored, and this site says loudly if another one scored "
            "another model than the one that all should have been sent, or if no list came from a site."
        )
    else:
        rule += (
            " In this study each site is sent a model of its own or none, so that sites cannot compare which models "
            "they scored."
        )
    if protect.rows is not None:
        return [f"{rule} What a score under noise tells of a held-out patient is within the privacy budget."]
    if protect.scores == "exact":
        return [f"{rule} EXACT SCORES still tell, once in a run, whether one person of its choice is among them."]
    return [
        f"{rule} Because of the rounding, one patient more or less changes such a number in at most one case of {TEN}."
    ]
