"""The parts that all figures are made of, as SVG text: tags, words, shades, and a figure as wide as its place.

Data in, markup out: no drawing library, no script, colours by page.css. Whatever comes from a file (names of sites,
methods, features) passes through `tag`, which escapes it. A child `title` is what is shown under the pointer.
Most figures are drawn twice, wide and narrow; page.css shows the one whose text is legible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

COLOURS = 7  # .m0 to .m6 in page.css; what comes after takes the colours again, dotted
SHADES = 6  # on each side of nothing: .h0 (blue) over .h6 to .h12 (red)
WIDE, NARROW = 832, 340  # pixels: the reading column, and a telephone's
PANEL = 350  # pixels of one of several panels side by side
LETTER = 7.0  # pixels of a letter of a name


def colour(i: int) -> str:
    """The class of the i-th of things that are told apart by colour."""
    return f"m{i % COLOURS}" + (" again" if i >= COLOURS else "")


def shade(part: float) -> str:
    """The class of a colour between full blue (-1) and full red (1); 0 is grey."""
    return f"h{SHADES + round(SHADES * part)}"


STRONG = frozenset(shade(end * (SHADES - k) / SHADES) for end in (-1, 1) for k in (0, 1))


def ink_on(kind: str) -> str:
    """The class of words in a cell of this shade: page.css keeps a contrast of 4.5 on each, light and dark."""
    return "in dark" if kind in STRONG else "in"


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """One element. Children and attribute values are escaped unless they are markup made here.

    >>> tag("text", "a < b", class_="name", text_anchor="end")
    Markup('<text class="name" text-anchor="end">a &lt; b</text>')
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"' for key, value in attributes.items()
    )
    return Markup(f"<{name}{pairs}>{''.join(escape(c) for c in children)}</{name}>")


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def tip(words: str) -> Markup:
    """What is shown under the pointer; first among the children of a shape."""
    return tag("title", words)


def text(x: float, y: float, words: str, kind: str, anchor: str = "start", full: str | None = None) -> Markup:
    """`full` is shown under the pointer where the words were shortened."""
    hover = [] if full is None or full == words else [tip(full)]
    return tag("text", words, *hover, x=x, y=y, class_=kind, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Iterable[tuple[float, float]], *children: str, kind: str, close: bool = False) -> Markup:
    d = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("path", *children, d=d + ("Z" if close else ""), class_=kind)


def box(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as a piece of a path."""
    return f"M{_plain(x)},{_plain(y)}h{_plain(width)}v{_plain(height)}h-{_plain(width)}z"


def hatch(begin: float, end: float, y: float, high: float, gap: int = 7) -> Markup:
    """Slanting lines over a box."""
    lines = []
    for i in range(math.ceil((end - begin + high) / gap)):
        start = begin - high + i * gap
        a, b = max(begin, start), min(end, start + high)
        lines.append(f"M{a:.1f},{y + high - (a - start):.1f}L{b:.1f},{y + high - (b - start):.1f}")
    return tag("path", d="".join(lines), class_="hatch")


def squares(entries: Iterable[tuple[str, str]], left: float, top: float) -> list[Markup]:
    """A key in one line: squares of these classes, each with its words."""
    parts = []
    for kind, words in entries:
        parts.append(tag("rect", x=left, y=top, width=11, height=11, class_=kind))
        parts.append(text(left + 16, top + 9.5, words, "tick"))
        left += 32 + 6.6 * len(words)
    return parts


def twice(picture: Callable[[int], Markup]) -> Markup:
    """The figure for the reading column and for a telephone."""
    return picture(WIDE) + picture(NARROW)


def is_narrow(width: float) -> bool:
    return width < 500


def plot(width: float, height: float, title: str, description: str, parts: Iterable[str], kind: str = "") -> Markup:
    """A figure as wide as its place; title and description are for those who listen."""
    size = f"0 0 {_plain(width)} {_plain(height)}"
    kind = kind or ("plot narrow" if is_narrow(width) else "plot wide")
    return tag("svg", tag("title", title), tag("desc", description), *parts, viewBox=size, role="img", class_=kind)


def panels(entries: Iterable[Sequence[Markup]]) -> Markup:
    """Figures side by side, as many in a line as there is room for, each with its heading and what follows it."""
    return tag("div", *(tag("div", *entry, class_="panel") for entry in entries), class_="panels")


class Drawing(NamedTuple):
    """Markup and the size it takes."""

    width: float
    height: float
    parts: list[Markup]

    def sized(self, kind: str, *words: str, role: str = "img") -> Markup:
        """At its own size. `words` are title and description; without them it is hidden from those who listen. A
        drawing with links in it is a group."""
        wide, high = f"{self.width:.0f}", f"{self.height:.0f}"
        about = [tag(name, text) for name, text in zip(("title", "desc"), words, strict=False)]
        listen = {"role": role} if words else {"aria_hidden": "true"}
        size = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
        return tag("svg", *about, *self.parts, **size, **listen, class_=kind)
