"""The laws of every method, for methods that live outside this repository too.
In a test of yours: check_method(MyMethod, options=[{}, {"mu": 0.5}]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.engine.rounds import AnyMethod
from vitrail.testing.laws import LAWS, Law, name_of, only_declared_tensors_travel
from vitrail.testing.trial import Trial, trials

__all__ = ["LAWS", "Law", "Trial", "check_method", "name_of", "trials"]


def check_method(method: type[AnyMethod], *, options: Sequence[Mapping[str, Any]] = ()) -> None:
    """Hold the method to every law, with each of these hyperparameters (its defaults where none are given), on a linear
    model, an MLP and a CNN, by SGD and by Adam, unless it says that it clashes with them.

    Raises AssertionError with a line for every law that is broken.
    """
    broken: dict[Law, list[str]] = {}
    for given in options or ({},):
        built = method(**given)
        tried = list(trials(built))
        if not tried:
            raise AssertionError(
                f"{built} is incompatible with every network and optimizer, so no law could be checked"
            )
        for trial in tried:
            for law in LAWS:
                try:
                    law(trial)
                except AssertionError as error:
                    broken.setdefault(law, []).append(str(error))
                    if law is only_declared_tensors_travel:
                        break  # the engine refuses such a message: nothing else can be tried
    if broken:
        lines = [first + (f" (and {len(more)} more times)" if more else "") for first, *more in broken.values()]
        raise AssertionError("\n".join([f"{method.__name__} breaks {len(broken)} of {len(LAWS)} laws", *lines]))
