"""What a site sees of itself (quality/repair/inspection.py, analysis/images/gallery.py) as plain text, for a
terminal."""

from __future__ import annotations

from collections.abc import Iterable

from vitrail.analysis.images.gallery import Album
from vitrail.analysis.images.gallery import to_text as album_text
from vitrail.data.readers.tables import name_rows
from vitrail.quality.causes import Cause
from vitrail.quality.repair.inspection import ColumnView, SiteInspection

BARS = "▁▂▃▄▅▆▇█"


def to_text(inspection: SiteInspection | Album) -> str:
    """For a terminal."""
    if isinstance(inspection, Album):
        return album_text(inspection)
    lines = [f"This stays at {inspection.site}.", ""]
    if not inspection.same:
        lines += ["These rows are not those that the run saw: what follows mixes the two.", ""]
    if not any(v.wrong for v in inspection.views):
        lines += [f"{inspection.lead} Any column can be looked at: --feature NAME.", ""]
    for view in inspection.views:
        if view.brief:
            continue
        lines.append(f"{view.name}: {view.judged}: {view.trouble}" if view.trouble else view.name)
        if view.answer:
            lines[-1:] = [f"{view.name}: {view.answer}", f"  {view.said}", ""]
            continue
        lines += [f"  {view.said}"] if view.said else []
        lines += [f"  {line}" for line in _bars_in_text(view)]
        lines += [f"  {view.reading}"] if view.reading else []
        for i, cause in enumerate(view.causes):
            lines.append(f"  {view.rank(i)}: {cause.what}: {cause.numbers}. {rows_of(cause)}".rstrip())
            lines.append(f"    To do: {cause.repair}")
            lines += [f"    To try: {inspection.command} {cause.command}"] if cause.command else []
        lines += [] if view.causes else [f"  {view.rank(0)}: {view.verdict}."]
        lines += [f"    To ask: {view.ask}"] if view.ask and not view.causes else []
        lines.append("")
    if inspection.repairs > 1 and inspection.together:
        lines += [f"All repairs at once: {inspection.together}", ""]
    if brief := [view.name for view in inspection.views if view.brief]:
        lines += ["Differs, and may be real (look at one: --feature NAME):", f"  {', '.join(brief)}"]
    return "\n".join(lines).rstrip()


def rows_of(cause: Cause) -> str:
    """Which rows of the file these are, as examples."""
    if not cause.rows:
        return ""
    more = cause.count - len(cause.rows)
    return f"{name_rows(cause.rows).capitalize()}{f' and {more} more' if more > 0 else ''}."


def _bars_in_text(view: ColumnView) -> Iterable[str]:
    unit = f" {view.unit}" if view.unit else ""
    for group in view.groups:
        total, top = sum(group.counts), max(1, *group.counts, 1)
        missing = f", {100 * group.missing / max(1, group.rows):.0f} % missing" if view.kind != "label" else ""
        if view.edges:
            drawn = "".join(" " if not c else BARS[min(7, int(8 * c / top))] for c in group.counts)
            shown = f": {view.edges[0]:g} {drawn} {view.edges[-1]:g}{unit}" if total else ""
        else:
            pairs = zip(view.levels, group.counts, strict=True)
            shown = ": " + ", ".join(f"{n} {100 * c / max(1, total):.0f} %" for n, c in pairs) if total else ""
        yield f"{group.name}: {group.rows} rows{missing}{shown}"
