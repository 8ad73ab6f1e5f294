"""In the words of the consent form: where a method has a site's rows judge models that others chose, how often, and
what that can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.two_server.shared import READ
from vitrail.engine.contract import MASKED, WireEntry
from vitrail.privacy.score_rounding import COARSEST, TEN


def what_judging_tells(agreement: Agreement, lines: Sequence[WireEntry]) -> list[str]:
    """Of each exchange whose reports say how models do on this site's rows; `lines`: what leaves."""
    leaving, out = {x.stage for x in lines}, []
    exact = agreement.study.protect.scores == "exact"
    for s, t in enumerate(agreement.stages):
        for place, turn in enumerate(t.turns):
            ex, contract = turn.exchange, agreement.contracts[s][place]
            told = {k: math.prod(v[0]) for k, v in contract.up.items() if k.split("/")[0] in ex.wire.score_fields}
            if not told or contract.stage not in leaving:
                continue
            rounded = {k: n // 2 for k, n in told.items() if k in ex.wire.hit_fields and not exact}
            plain = sum(n for k, n in told.items() if k not in rounded)
            times = t.stage.times(place)
            often = f"{'once' if times == 1 else several(times, 'time')} in a run"
            title = t.stage.title or t.stage.name
            head = f"Beyond training, this method has your rows judge models ({title}), {often}."
            out.append(" ".join([head, *_counts(sum(rounded.values())), *_numbers(plain, contract.read)]))
    return out


def _counts(many: int) -> list[str]:
    if not many:
        return []
    return [
        f"{several(many, 'count')} of {'rows' if many > 1 else 'row'} that a model told right "
        f"{'leave' if many > 1 else 'leaves'} each time, rounded by chance to a multiple of {TEN} or more; none of a "
        f"class of which you have fewer than {TEN / COARSEST:.0f} such rows."
    ]


def _numbers(many: int, read: str) -> list[str]:
    if not many:
        return []
    numbers, leave = f"{several(many, 'number')} each time", "leave" if many > 1 else "leaves"
    if read == READ:
        return [f"{numbers} {leave} in two halves, of which neither server can read one alone."]
    if read in MASKED:
        return [f"{numbers} {leave} under masks: the coordinator reads the sum over the sites, and no site's own."]
    return [
        f"NOT ROUNDED: {numbers} {leave} exactly. A coordinator that does not keep to the rules can choose a model, as "
        "often as that, so as to find out from them whether a person it knows is among your rows."
    ]
