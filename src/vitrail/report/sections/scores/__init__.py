"""Sections on scores: what was reached where, what joining is worth, and how it came about."""
