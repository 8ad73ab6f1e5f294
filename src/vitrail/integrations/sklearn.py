"""A federation with scikit-learn's habits: fit, predict, score, get_params, clone; in pipelines and grids too.

Rows come as one table and a label for each says whose they are. Each site has a model of its own in the end, so whoever
predicts says for which site. The run behind it is `run_`, with all that a run can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.drafting.features import draft_features
from vitrail.data.schema import canon
from vitrail.runs import federate
from vitrail.study.model import Study

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.metrics import accuracy_score, r2_score
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
except ImportError:
    what = "scikit-learn 1.6 or later is not installed here."
    hint = "pip install 'vitrail[sklearn]'"
    raise VitrailError("scikit-learn is missing", [Problem("vitrail.integrations.sklearn", what, hint)]) from None

__all__ = ["FederatedClassifier", "FederatedRegressor"]

ONE = "all"  # the site of rows that nobody gave a label
NONE = 1e-12  # a share so small that no row is held out


class UnfitError(VitrailError, ValueError):
    """What scikit-learn expects to be told as a ValueError."""


class _Federated(BaseEstimator):
    """What both have in common."""

    kind: ClassVar[str]

    def __init__(
        self,
        method: Any = methods.DEFAULT,
        *,
        options: Mapping[str, Any] | None = None,
        rounds: int = 100,
        epochs: int = 1,
        batch: int = 16,
        lr: float = 0.002,
        hidden: tuple[int, ...] = (128, 64),
        dropout: float = 0.2,
        test: float = 0.0,
        screen: bool = True,
        study: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: int | None = None,
    ) -> None:
        self.method = method
        self.options = options
        self.rounds = rounds
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.hidden = hidden
        self.dropout = dropout
        self.test = test
        self.screen = screen
        self.study = study
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing value says nothing, one way or the other
        return tags

    def fit(self, X: Any, y: Any, sites: Any = None) -> Any:
        """Train over the sites. `sites`: for each row a label that says whose it is; left out, all are of one."""
        named = str(getattr(y, "name", None) or "y").strip()
        rows, y = self._taken(X, y, learn=True)
        whose = _labels(sites, len(rows))
        answers, target = self._learn(y)
        column = named or "y"
        while column in rows:
            column += "_"
        study = Study.parse(self._said(column, target, _features(rows)), f"{type(self).__name__}'s settings")
        rows[column] = answers
        tables = {str(site): part for site, part in rows.groupby(whose, sort=False)}
        method = None if isinstance(self.method, str) else self.method
        seed = study.seeds[0] if self.random_state is None else self._seed()
        self.run_ = federate(study, tables, method, seed=seed, device=self.device, progress=_say_nothing)
        self.sites_ = self.run_.sites
        return self

    def _learn(self, y: NDArray[Any]) -> tuple[NDArray[Any], dict[str, Any]]:
        """The column of the target, and what a study says of it."""
        raise NotImplementedError

    def _seed(self) -> int:
        """A generator gives another one each time, as everywhere in scikit-learn."""
        state = check_random_state(self.random_state)
        return int(self.random_state if isinstance(self.random_state, int | np.integer) else state.randint(2**31 - 1))

    def _taken(self, X: Any, y: Any = None, learn: bool = False) -> tuple[pd.DataFrame, Any]:
        """Rows as a table of its own, checked as scikit-learn does; of a table with columns of words those as they are.
        Columns have the names that they came with, or x0, x1, ... where they came without."""
        wordy = isinstance(X, pd.DataFrame) and not all(pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes)
        how: dict[str, Any] = {"skip_check_array": True} if wordy else {"ensure_all_finite": "allow-nan"}
        if learn:
            number = {"y_numeric": True} if self.kind == "number" else {}
            how |= {} if wordy else {**number, "ensure_min_samples": 2}
            X, y = validate_data(self, X, y, reset=True, **how)
            if wordy:
                y = column_or_1d(y, warn=True)
                check_consistent_length(X, y)
        else:
            X = validate_data(self, X, reset=False, **how)
        names = [str(name).strip() for name in getattr(self, "feature_names_in_", ())]
        if not names or "" in names or len(set(names)) < len(names):
            names = [f"x{i}" for i in range(self.n_features_in_)]
        return (X.set_axis(names, axis=1).reset_index(drop=True) if wordy else pd.DataFrame(X, columns=names)), y

    def _said(self, column: str, target: dict[str, Any], features: dict[str, Any]) -> dict[str, Any]:
        """The study, as its file would say it. `study` is added last, section by section."""
        content: dict[str, Any] = {
            "name": "scikit-learn",
            "target": {"column": column, **target},
            "features": features,
            "split": {"test": self.test or NONE, "at_least": 0},
            "network": {"hidden": list(self.hidden), "dropout": self.dropout},
            "training": {"rounds": self.rounds, "epochs": self.epochs, "batch": self.batch, "lr": self.lr},
            "screen": {"ask": self.screen},
        }
        if isinstance(self.method, str):
            content["method"] = {"name": self.method, **(self.options or {})}
        for key, value in (self.study or {}).items():
            content[key] = {**content[key], **value} if isinstance(value, Mapping) and key in content else value
        return content

    def _told(self, X: Any, site: Any) -> NDArray[np.float64]:
        """[row, class] or [row, 1]: what the model of each row's site says of it."""
        check_is_fitted(self)
        rows, _ = self._taken(X)
        whose = self._whose(site, len(rows))
        target = self.run_.study.target
        columns = list(target.levels) if target.kind == "classes" else [target.column]
        out = np.empty((len(rows), len(columns)))
        for name in dict.fromkeys(whose):
            mine = np.flatnonzero(whose == name)
            model = self.run_.final_model(name)._replace(double=True)
            out[mine] = model.predict(rows.iloc[mine])[columns].to_numpy(np.float64)
        return out

    def _whose(self, site: Any, rows: int) -> NDArray[np.object_]:
        """[row]: the site whose model is asked."""
        if site is None and len(self.sites_) > 1:
            what = f"each of the {len(self.sites_)} sites has its own model, but no site was named."
            names = ", ".join(self.sites_[:8]) + (", ..." if len(self.sites_) > 8 else "")
            raise UnfitError(
                "cannot predict", [Problem("site", what, f"Give site=..., one for all rows or for each: {names}.")]
            )
        if site is None:
            return np.full(rows, self.sites_[0], object)
        whose = _labels(np.full(rows, site, object) if np.ndim(site) == 0 else site, rows)
        strange = [name for name in dict.fromkeys(whose) if name not in self.sites_]
        if strange:
            problems = [
                Problem("site", f"there was no site {name!r} in the training.", nearest(name, self.sites_))
                for name in strange
            ]
            raise UnfitError("cannot predict", problems)
        return whose


class FederatedClassifier(ClassifierMixin, _Federated):
    """One of some classes. `method` is a name of `vitrail.methods.TABLE` (its settings in `options`) or a method.

    `test` is the share of each site's rows that is held out, for the scores of `run_` and its page; by default all are
    trained on. `study`: further sections of a study file, as dictionaries. Numbers may be missing (NaN); columns of
    words in a DataFrame are categories. `random_state=None` is the first seed of every study.
    """

    kind = "classes"

    def _learn(self, y: NDArray[Any]) -> tuple[NDArray[Any], dict[str, Any]]:
        check_classification_targets(y)
        self.classes_, at = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            what = f"expected at least two classes, but all rows are of class {self.classes_[0]!r}."
            raise UnfitError("cannot learn", [Problem("y", what, "Give rows of another class too.")])
        names = [canon(value) for value in self.classes_.tolist()]
        if len(set(names)) < len(names) or "" in names:
            names = [str(i) for i in range(len(names))]  # two would be read as one, or one as missing
        two = {"positive": names[1]} if len(names) == 2 else {}
        return np.array(names, object)[at], {"kind": self.kind, "classes": names, **two}

    def predict_proba(self, X: Any, site: Any = None) -> NDArray[np.float64]:
        """[row, class], in the order of `classes_`, by the model of that site: one for all rows, or one for each."""
        probabilities = self._told(X, site)
        probabilities /= probabilities.sum(1, keepdims=True)  # they add up to nearly one
        return probabilities

    def predict(self, X: Any, site: Any = None) -> NDArray[Any]:
        """The likeliest class of each row, by the model of that site: one for all rows, or one for each."""
        likely: NDArray[Any] = self.predict_proba(X, site).argmax(1)
        return np.asarray(self.classes_[likely])

    def score(self, X: Any, y: Any, sample_weight: Any = None, site: Any = None) -> float:
        """The share of rows whose class is found."""
        return float(accuracy_score(y, self.predict(X, site), sample_weight=sample_weight))


class FederatedRegressor(RegressorMixin, _Federated):
    """A number. `method` is a name of `vitrail.methods.TABLE` (its settings in `options`) or a method.

    `test` is the share of each site's rows that is held out, for the scores of `run_` and its page; by default all are
    trained on. `study`: further sections of a study file, as dictionaries. Numbers may be missing (NaN); columns of
    words in a DataFrame are categories. `random_state=None` is the first seed of every study.
    """

    kind = "number"

    def _learn(self, y: NDArray[Any]) -> tuple[NDArray[Any], dict[str, Any]]:
        numbers = np.asarray(y, np.float64)
        scaling = {"center": float(numbers.mean()), "scale": float(numbers.std()) or 1.0}
        return numbers, {"kind": self.kind, **scaling}

    def predict(self, X: Any, site: Any = None) -> NDArray[np.float64]:
        """A number for each row, by the model of that site: one for all rows, or one for each."""
        return self._told(X, site)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, site: Any = None) -> float:
        """R2: the share of the variance that is told."""
        return float(r2_score(y, self.predict(X, site), sample_weight=sample_weight))


def _labels(sites: Any, rows: int) -> NDArray[np.object_]:
    """[row]: the name of its site."""
    if sites is None:
        return np.full(rows, ONE, object)
    given = np.asarray(sites, object)
    if given.shape != (rows,):
        what = f"expected one label for each of {rows} rows, got {' x '.join(map(str, given.shape)) or 'a single one'}."
        raise UnfitError(
            "it is not clear which site each row belongs to", [Problem("sites", what, "Give one label for each row.")]
        )
    if pd.isna(given).any():
        what = f"{int(pd.isna(given).sum())} rows have no label."
        raise UnfitError("it is not clear which site each row belongs to", [Problem("sites", what, "Fill them in.")])
    return np.array([canon(label) for label in given], object)


def _features(rows: pd.DataFrame) -> dict[str, Any]:
    """What a study says of each column: numbers are numbers; of words it says which there are."""
    wordy = [name for name, kind in rows.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    drafted, left = draft_features({ONE: rows[wordy]}, ())[:2] if wordy else ({}, {})
    if left:
        hint = "Leave the column out, or convert it to numbers first."
        raise UnfitError(
            "the table cannot be learned from", [Problem(f"column {n}", f"{why}.", hint) for n, why in left.items()]
        )
    return {name: drafted.get(name, {"kind": "numeric"}) for name in map(str, rows)}


def _say_nothing(done: int, total: int) -> None:
    """In a grid a bar for each of many fits would be in the way."""
