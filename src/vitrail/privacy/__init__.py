"""What stands between a report and its use: bounds, clipping, noise, robust centres; and what of a privacy budget is
spent. A study lists it, methods do not know."""

from vitrail.privacy.budget import Budget, noise_for, spent
from vitrail.privacy.guards import AT_REST, Guards

__all__ = ["AT_REST", "Budget", "Guards", "noise_for", "spent"]
