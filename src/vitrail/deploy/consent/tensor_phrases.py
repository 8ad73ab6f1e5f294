"""What each tensor is, in the words of the consent form."""

from __future__ import annotations

from vitrail.core.facts import ALONE, RECEIVED, SHARED
from vitrail.metrics.scores import FEWEST
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, RISK

OUT = {  # and what crosses there
    "rows": "how many rows you train on, how many are held out for testing, and how many of these are of their rarest "
    "class",
    "rows of numbers": "how many rows you train on, and how many are held out for testing",
    "chance": "how good always giving the same answer would be on your held-out rows: it tells the share of each class "
    "among them",
    "chance of numbers": "how good always giving the same answer would be on your held-out rows: it tells how far the "
    "target spreads among them",
    "rows of times": "how many rows you train on, how many are held out for testing, and how many of these had the "
    "event",
    "chance of times": "how good always giving the same answer would be on your held-out rows: it tells how soon the "
    "event comes among them",
    "target of times": "the share of your rows that had the event until the horizon",
    "target": "the share of each class among your rows",
    "mean of target": "the mean of the target over your rows",
    "count": "how many of your training rows have a value, for each numeric column",
    "sum": "the sum of these values, for each numeric column",
    "sum of squares": "the sum of the squares of these values, for each numeric column",
    "squared distance to the mean": "how far they are from the mean of all sites: a sum of squares for each column",
    "scores": "how good your model is on your own held-out rows",
    f"scores, {SHARED}": "the same for the model of all sites",
    f"scores, {ALONE}": "the same for the model trained on your rows alone",
    f"scores, {RECEIVED}": "the same for the model that you were given, before you trained it",
    "scores, train": "at the end the same on your training rows",
    f"scores, {COVERAGE}": "at the end how unsure your model is on the held-out rows, how well that tells its "
    f"mistakes, and how often it is right in those it is surest of; no number about fewer than {FEWEST} rows, and no "
    "two that differ by fewer",
    f"scores, {AT_BEDSIDE}": "at the end, of your held-out rows between two risks that your model says: how many there "
    f"are, how many had the outcome, and how many the model expected; no group of fewer than {FEWEST} rows",
    f"scores, {RISK}": "at the end how many of the held-out rows of low, middle and high risk, by your model, are free "
    "of the event at the end of each interval, and, if the study's scores are exact, how many are still followed then; "
    f"no number about fewer than {FEWEST} rows, and no two that differ by "
    "fewer",
}
IN = {
    "mean": "the mean of each numeric column over all sites",
    "standard deviation": "its standard deviation over all sites",
    "others": "at the end, with what was found about this site in words: the mean of what the others published",
}
GROUPS = {
    "input": "your private layer at the input: a shift and a factor for each column",
    "body": "the hidden layers of your model",
    "front": "the first layers of your model, which see edges and shapes",
    "rear": "the layers of your model that make features of them",
    "features": "the convolutions of your model, which make a map of each picture",
    "add_on": "the layers of your model between that map and its prototypes",
    "prototypes": "the prototypes of your model",
    "head": "the last layer of your model",
    "output": "your private layer at the output: a shift and a factor for the outcome",
}

WORDS = {
    "fingerprint": "a fingerprint of your rows (16 characters; it changes when a value does, and tells none)",
    "versions": "the versions of vitrail, torch and Python",
}
