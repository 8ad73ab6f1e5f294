"""A run as one self-contained HTML page: findings first, figures second, tables folded behind them."""

from vitrail.report.pages.run import Page, render

__all__ = ["Page", "render"]
