"""What names and spellings tell: which columns may be one, which are numbers of people, which come afterwards."""

from __future__ import annotations

import difflib
import re
import unicodedata
from functools import cache

# One thing to a line, as hospitals write it in English, German, French, Italian and Spanish.
SAME = """
age alter eta edad ageyears ageinyears
sex gender geschlecht sexe sesso sexo genre genero
weight gewicht poids peso bodyweight koerpergewicht bw
height groesse taille altezza talla estatura koerpergroesse bodyheight
bmi bodymassindex imc
education schulbildung bildung ausbildung formation istruzione educacion schooling
smoker smoking raucher rauchen fumeur tabac tabagisme fumatore fumador smokingstatus
diabetes diabetic zucker diabete dm
pressure bloodpressure blutdruck tensionarterielle pressione presionarterial
systolic sbp sysbp rrsys systolicpressure blutdrucksystolisch
diastolic dbp diabp rrdia diastolicpressure blutdruckdiastolisch
pulse heartrate hr herzfrequenz puls pouls frequenzacardiaca frecuenciacardiaca
temperature temp fieber temperatur fever fievre febbre fiebre bodytemperature
cholesterol chol cholesterin colesterolo colesterol
glucose blutzucker glycemie glicemia glucemia bloodsugar glukose
creatinine kreatinin crea creatinina
haemoglobin hemoglobin haemoglobin hb hgb hemoglobine emoglobina hemoglobina
outcome ergebnis ausgang resultat esito resultado
married maritalstatus familienstand etatcivil statocivile estadocivil
occupation beruf profession professione ocupacion job
ward station abteilung service reparto servicio
"""
NUMBERS_PEOPLE = re.compile(
    r"(^|[^a-z])(id|no|num|number|mrn|pid|key|index|record|case|patient|subject|fall|pat|[a-z]*nr|[a-z]*nummer)s?($|[^a-z])"
)
AFTERWARDS = re.compile(
    r"(follow|survi|(^|_)(futime|fu|os|dfs|pfs|rfs|ttd|tte|los)(_|$)|time|days|months|years|zeit|dauer|tage|monate"
    r"|jahre|duree|jours|mois|suivi|tiempo|dias|meses|tempo|giorni|mesi|discharge|entlass)"
)
BEFORE = re.compile(r"(age|birth|since|seit|depuis|prior|previous|onset|before|alter)")  # "years of age", "days since"


def fold(text: str) -> str:
    """A spelling without case, accents, and spaces at its ends or in a row.

    >>> fold(" Évolution  favorable"), fold("STRASSE") == fold("Straße")
    ('evolution favorable', True)
    """
    bare = "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return " ".join(bare.split())


@cache
def bare(name: str) -> str:
    """A column's name by its letters and digits alone; what is spelt with umlauts as with ue.

    >>> bare("Blood-Pressure (sys)"), bare("Größe")
    ('bloodpressuresys', 'groesse')
    """
    spelt = name.casefold().translate({ord("ä"): "ae", ord("ö"): "oe", ord("ü"): "ue"})
    return re.sub("[^a-z0-9]", "", fold(spelt))


@cache
def _meanings() -> dict[str, int]:
    return {word: i for i, line in enumerate(SAME.split("\n")) for word in line.split()}


def is_same_name(a: str, b: str) -> bool:
    """Surely two names of one thing: alike but for typography, or translations.

    >>> is_same_name("Alter", "AGE"), is_same_name("Heart rate", "heart_rate"), is_same_name("age", "stage")
    (True, True, False)
    """
    if bare(a) == bare(b) != "":
        return True
    meant = _meanings().get(bare(a))
    return meant is not None and meant == _meanings().get(bare(b))


def is_like_name(a: str, b: str) -> bool:
    """Perhaps two names of one thing.

    >>> is_like_name("creat", "creatinine"), is_like_name("sodium", "sodum"), is_like_name("age", "wage")
    (True, True, False)
    >>> is_like_name("maternal age", "age"), is_like_name("Alter der Mutter", "age"), is_like_name("stage", "age")
    (True, True, False)
    """
    one, two = sorted((bare(a), bare(b)), key=len)
    if len(one) < 3:
        return False
    if two.startswith(one) or difflib.SequenceMatcher(None, one, two).ratio() >= 0.87:
        return True
    return any(is_same_name(one, word) for word in re.findall(r"[^\W_]+", split_words(a if bare(a) == two else b)))


def numbers_people(name: str) -> bool:
    """Whether a column of this name may number patients or cases.

    >>> [numbers_people(n) for n in ("PatientID", "pat_nr", "id", "lipid", "Case No.", "Fallnummer")]
    [True, True, True, False, True, True]
    """
    return bool(NUMBERS_PEOPLE.search(fold(split_words(name))))


def split_words(name: str) -> str:
    """Its words apart: PatientID is Patient_ID."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def comes_afterwards(name: str) -> bool:
    """Whether a column of this name may be a time until the outcome, or until nobody looked any more.

    >>> [comes_afterwards(n) for n in ("survival_days", "OS", "follow-up", "age (years)", "time since onset", "cost")]
    [True, True, True, False, False, False]
    """
    plain = fold(name)
    return bool(AFTERWARDS.search(plain)) and not BEFORE.search(plain)
