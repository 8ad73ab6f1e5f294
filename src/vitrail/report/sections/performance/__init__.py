"""Sections on what a model is worth: thresholds, predicted values, effects of the features."""
