"""Which site's class stands out, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrail.analysis.shortcuts.detector import ShortcutSignals
from vitrail.analysis.shortcuts.wording import LOOK, LOOK_THERE, calm, labels_of, sentences
from vitrail.report.sections.pictures.shortcut_maps import STANDING, read_signals
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import name

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def contents(page: Page) -> Contents:
    run = run_of(page)
    deployed = run.info["engine"] == "deployed"
    return contents_of(read_signals(page), run.sites, run.study.target.levels, deployed, run.method.setting)


def contents_of(
    signals: ShortcutSignals, sites: Sequence[str], levels: Sequence[str], deployed: bool, setting: str = ""
) -> Contents:
    lines = sentences(signals, sites, labels_of(levels, signals))
    return {
        "said": [(name(f"{s.site}, class {s.label}"), s.what, s.sure, s.ask) for s in lines],
        "calm": calm(signals),
        "look": LOOK_THERE if deployed else LOOK,
        "level": f"{100 * signals.level:g}",
        "setting": setting,
    }


SECTION = Section(contents, has_fact(*STANDING), STANDING, heat=True)
