"""The study file: its model, its validation, its defaults."""
