"""A site that multiplies what it reports."""

from __future__ import annotations

from typing import Any

from tests.support.deploy.masked_runs import Masked
from vitrail.core.tensors import map_tensors
from vitrail.deploy.protocol.message import Message


def lying(way: Masked, site: str, by: float) -> None:
    """Whatever its change is, it says `by` times that."""
    real = way.sites[site].answer

    def lie(asked: Message) -> Message:
        if asked.kind == "round" and way.sites[site].data is not None and "answers" not in vars(way.sites[site].engine):
            engine, before = way.sites[site].engine, way.sites[site].engine.answers

            def answers(*given: Any) -> Any:
                (report,) = before(*given)
                change = map_tensors(lambda t: t * by, report.held.change)
                return [report._replace(held=report.held._replace(change=change))]

            engine.answers = answers  # type: ignore[method-assign]
        return real(asked)

    way.sites[site].answer = lie  # type: ignore[method-assign]
