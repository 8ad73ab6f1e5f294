"""Whole pages, each a self-contained HTML file."""
