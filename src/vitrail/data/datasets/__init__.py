"""Data that is shipped or found on disk; ways to partition a table; shortcuts planted for research."""
