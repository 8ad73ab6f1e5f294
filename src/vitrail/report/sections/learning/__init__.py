"""Sections on whom each site learned from."""
