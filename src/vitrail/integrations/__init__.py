"""Vitrail inside other programs: scikit-learn, notebooks."""
