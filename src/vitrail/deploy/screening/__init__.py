"""Screening by message."""
