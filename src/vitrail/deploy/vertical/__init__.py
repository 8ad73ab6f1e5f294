"""Vertical studies between machines."""
