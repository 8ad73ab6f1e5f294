"""Checks of one site's own data, before anything leaves it."""
