"""Secure aggregation by message."""
