"""The protocols of papers, by name: what a study with `paper = NAME` says where its file leaves it out."""

from __future__ import annotations

from typing import Any

OWN_SCALE = "local"  # standardised by each site's own mean and spread

# iFedAvg (Roschewitz et al.): every site's own scale, classes weighed alike, dropout, 100 rounds of SGD. Until format
# 1.2 of the study file these were the defaults of every study.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "ifedavg": {
        "standardise": OWN_SCALE,
        "reference_level": False,
        "network": {"dropout": 0.2},
        "training": {"class_weights": "inverse", "lr": 0.002, "weight_decay": 0.0},
    }
}
OF_TIMES: dict[str, dict[str, Any]] = {"network": {"hazards": "free"}, "training": {"epochs": 1}}  # more, of times
BEFORE = "ifedavg"  # what a file of format 1.2 or older means by what it leaves out
