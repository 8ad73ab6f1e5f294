"""A screening for a terminal, and for who looks at it from Python."""

from __future__ import annotations

from collections.abc import Iterable

from vitrail.quality.screening.result import CAUSES, LABEL, Finding, Screening

SHOWN = 10  # of what differs and may be real


def sentence(finding: Finding) -> str:
    """One line; what others wrote is harmless on a terminal."""
    feature = "outcome" if finding.feature == LABEL else finding.feature
    text = f"{finding.site}, {feature}: {cause_text(finding)}"
    return "".join(c if c.isprintable() else "?" for c in text)


def cause_text(finding: Finding) -> str:
    """The likely cause, and what was seen."""
    named = finding.wrong and finding.kind in CAUSES and finding.kind != "differs"
    return f"{CAUSES[finding.kind]}. {finding.text}" if named else finding.text


def twin_sentences(screening: Screening) -> list[str]:
    """Sites that published the same digest of all their rows; each group is told once."""
    if "same rows" not in screening.sites:  # screened by an earlier version
        return []
    groups = screening.sites[screening.sites["same rows"].ne("")].groupby("same rows", sort=False)["site"]
    return [
        f"Sites {' and '.join(map(str, sites))} hold the same rows: one file was given twice, or one hospital takes "
        "part under two names. Its patients count twice, and these sites confirm each other."
        for _, sites in groups
    ]


def calm(screening: Screening) -> str:
    """What it means that nothing is likely wrong."""
    if not screening.sites["judged"].any():
        return "Fewer than three sites could be compared: if two differ, nobody can say which of them is wrong."
    return "Nothing is likely wrong: chance and different patients can explain every difference."


def sentences(findings: Iterable[Finding]) -> list[str]:
    """A line for each, and before it whether it is likely wrong."""
    return [f"{'likely wrong' if f.wrong else 'may be real'}: {sentence(f)}" for f in findings]


def to_text(screening: Screening) -> str:
    """The likely wrong first, then what differs and may be real, then who was not judged."""
    wrong, maybe = ([f"  - {sentence(f)}" for f in screening.findings if f.wrong is kind] for kind in (True, False))
    twins = [f"  - {text}" for text in twin_sentences(screening)]
    lines = ["Likely wrong", *twins, *wrong] if wrong or twins else [calm(screening)]
    if maybe:
        rest = [f"  and {len(maybe) - SHOWN} more, less strong"] * (len(maybe) > SHOWN)
        lines += ["", "Differs, and may be real", *maybe[:SHOWN], *rest]
    silent = screening.sites[~screening.sites["judged"].eq(True)]
    if len(silent):
        who = (f"{s} ({why})" for s, why in zip(silent["site"], silent["why not"], strict=True))
        lines += ["", f"Not judged: {', '.join(who)}"]
    return "\n".join(lines)
