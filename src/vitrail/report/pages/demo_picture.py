"""The picture that the index of a demo opens with: what joining is worth at each site, beside a picture of a site in
which the place that decides is framed. It is kept in demo.json as plain values."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from vitrail.analysis.images.gallery import Album
from vitrail.analysis.images.prototype_evidence import place
from vitrail.data.readers.images import png
from vitrail.methods import TABLE
from vitrail.report.pages.frame import fill_part
from vitrail.report.sections.scores.joining import SiteGain, verdict_figure
from vitrail.report.text import Interval, metric_words
from vitrail.studies.compare.result import Comparison

BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
WIDEST = 560  # pixels of the figure, beside the framed picture


class FramedPicture(NamedTuple):
    """A site's own picture, with a frame around the place that decides on its class."""

    site: str
    label: str
    where: str  # at the upper right
    png: str  # base64
    frame: Sequence[float]  # top, left, height, width: shares of the picture's


class DemoPicture(NamedTuple):
    words: Sequence[str]  # what the sites are, real or made by us, and what is special about each
    axis: str
    gains: Sequence[SiteGain]
    framed: FramedPicture | None

    def drawn(self) -> Markup:
        figure = verdict_figure(self.gains, self.axis, widest=WIDEST)
        style = ""
        if self.framed:
            sides = zip(("top", "left", "height", "width"), self.framed.frame, strict=True)
            style = "; ".join(f"{side}: {100 * share:.1f}%" for side, share in sides)
        return fill_part("parts/demo_picture.html", picture=self, figure=figure, style=style)


def demo_picture(words: Sequence[str], result: Comparison, framed: FramedPicture | None) -> DemoPicture:
    gains = [
        SiteGain(
            str(row["site"]),
            TABLE[row["method"]].catalogue.title,
            Interval(row["gain"], row["low"], row["high"]),
            str(row["verdict"]),
            row["harm"],
        )
        for row in result.verdicts().to_dict("records")
    ]
    return DemoPicture(words, f"saved {metric_words(result.yardstick)}", gains, framed)


def framed_picture(album: Album, label: str) -> FramedPicture | None:
    """The picture behind the prototype that counts most, with the window whose hiding changes the answer most; None
    where no single place decides on the class."""
    views = album.seen.views.get(label, ()) if album.seen else ()
    view = next((v for v in views if v.hidden.decides and v.parts and v.parts[0].behind), None)
    if view is None or view.parts[0].behind is None:
        return None
    picture = view.parts[0].behind.picture
    (top, left, bottom, right), (height, width) = view.hidden.strongest, picture.shape[1:]
    where = place((top + bottom) / 2 / height, (left + right) / 2 / width)
    frame = top / height, left / width, (bottom - top) / height, (right - left) / width
    return FramedPicture(album.site, label, where, base64.b64encode(png(picture)).decode(), frame)


def parse_picture(plain: Any) -> DemoPicture | None:
    """From the values of demo.json; whatever else it holds is a ValueError or a TypeError."""
    if plain is None:
        return None
    words, axis, rows, framed = plain
    gains = [
        SiteGain(str(site), str(method), Interval(*map(float, ends)), str(verdict), float(harm))
        for site, method, ends, verdict, harm in rows
    ]
    return DemoPicture([*map(str, words)], str(axis), gains, None if framed is None else _parse_framed(*framed))


def _parse_framed(site: str, label: str, where: str, picture: str, frame: Sequence[float]) -> FramedPicture:
    shares = [float(share) for share in frame]
    if len(shares) != 4 or not all(map(math.isfinite, shares)) or not BASE64.fullmatch(str(picture)):
        raise ValueError("no picture with a frame")
    return FramedPicture(str(site), str(label), str(where), str(picture), shares)
