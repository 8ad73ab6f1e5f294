"""Consent forms as they are printed: a text, and the hash of exactly that text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined

from vitrail.core.text import several
from vitrail.deploy.consent.context import ProtectionTerms, SiteForm
from vitrail.deploy.consent.layout import literal, text_of
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.storage.atomic_files import private_folder, write_atomically


class ConsentForm(NamedTuple):
    """What somebody agrees to."""

    text: str

    @property
    def hash(self) -> str:
        """Of the text, from its first line to its last."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:24]

    def save(self, home: Path) -> Path:
        """The text alone, to be printed: the SHA-256 of the file begins with the hash."""
        place = home / f"consent-{self.hash}.txt"
        private_folder(home)
        write_atomically(place, self.text)
        return place


class AcceptNote(NamedTuple):
    """What is printed below a form."""

    hash: str
    file: str  # that holds the text alone
    ending: str = ""  # of the hash to accept, of a party; see vertical/match_quota.py
    spent: bool = False  # whether all matches of the last yes were begun
    matches: int = 0  # of one yes
    begun: int = 0
    allowed: int = 0


def part(name: str) -> str:
    """A template."""
    return (files("vitrail.deploy.consent") / "templates" / name).read_text("utf-8")


@cache
def templates() -> Environment:
    env = Environment(  # of text, so that nothing is escaped for HTML; values are escaped by `harmless`
        loader=FunctionLoader(part), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    env.filters["several"] = several
    env.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    return env


def harmless(value: Any) -> Any:
    """The same with every text in it made a literal, whatever it holds."""
    if isinstance(value, str):
        return literal(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: harmless(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, tuple):
        parts = [harmless(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def fill(template: str, form: object, **more: Any) -> str:
    """A template as a finished text; `form`: its one context object."""
    return text_of(templates().get_template(template).render(form=harmless(form), **more))


def site_form(
    agreement: Agreement, site: str, sites: Sequence[str], publishes: bool, shows: bool = False
) -> ConsentForm:
    """What this site would agree to; see `SiteForm`."""
    return ConsentForm(fill("site.txt", SiteForm.of(agreement, site, sites, publishes, shows)))


def contract_text(agreement: Agreement, site: str, sites: Sequence[str], publishes: bool, shows: bool = False) -> str:
    return site_form(agreement, site, sites, publishes, shows).text


def accept_text(note: AcceptNote) -> str:
    return fill("accept.txt", note)


def protection_text(agreement: Agreement) -> str:
    """What stands between a report and who would read it, in a line."""
    return " ".join(fill("protection.txt", ProtectionTerms.of(agreement)).split())
