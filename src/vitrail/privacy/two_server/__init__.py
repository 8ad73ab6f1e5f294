"""Robust aggregation by two servers that do not collude."""
