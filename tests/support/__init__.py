"""What several tests and benchmarks share: small federations, sites on one machine, made-up pages."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
