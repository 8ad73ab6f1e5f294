"""Whose data does not fit, why, and what a site can do about it."""
