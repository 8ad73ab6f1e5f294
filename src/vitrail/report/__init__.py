"""A run as one self-contained HTML page: findings first, figures second, tables folded behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.core.loading import lazy_names

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page, render
else:
    __getattr__ = lazy_names(__name__, dict.fromkeys(("Page", "render"), "vitrail.report.pages.run"))

__all__ = ["Page", "render"]
