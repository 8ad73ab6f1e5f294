"""Federations on one machine, their keys, and who attacks them."""
