"""What FLARE says in a process of ours goes to its log file: it would come between the lines that a user reads."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from nvflare.fuel.hci.client import api


def redirect(file: Path) -> None:
    """Log records of FLARE's, and what its client for the lead prints ("Connecting to FLARE ...")."""
    log = logging.getLogger("nvflare")
    for old in log.handlers:
        old.close()
    handler = RotatingFileHandler(file, maxBytes=5 << 20, backupCount=2, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    api._print_hci_message = log.info
