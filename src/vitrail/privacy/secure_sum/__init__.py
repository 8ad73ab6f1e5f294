"""Sums over sites of which nobody sees a single part."""
