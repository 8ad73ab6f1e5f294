"""Statistics that know nothing of federated learning: intervals, tests, linkage, Shapley values."""
