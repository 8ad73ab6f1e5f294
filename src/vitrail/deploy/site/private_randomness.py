"""What a site draws from between machines: a secret of its own.

Batches, dropout and noise that the coordinator could draw again from the study's seed would let it rebuild rows from a
report. The secret is made when the site first needs it, lies in its home, and never leaves; a site that is started
again draws the same for the same round.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from vitrail.storage.atomic_files import private_folder
from vitrail.storage.journal import write_once

SECRET = "secret.key"  # in a site's home


def draws_of(home: Path, run: str) -> str:
    """From what this site draws in that run; another in every run."""
    secret = write_once(private_folder(home) / SECRET, lambda: secrets.token_bytes(32))
    return hmac.new(secret, f"vitrail draws 1 {run}".encode(), hashlib.sha256).hexdigest()
