"""Fixtures of test_flare_channels.py, which a benchmark uses too."""

from tests.support.deploy.channels import federation, honest, waiting

__all__ = ["federation", "honest", "waiting"]
