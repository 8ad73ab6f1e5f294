"""`vitrail join` of a site that answers every question with far too much. Run as a script: long_answers.py BYTES ..."""

from __future__ import annotations

import os
import sys

from vitrail.cli import main
from vitrail.deploy.site.process import SiteProcess

if __name__ == "__main__":
    count = int(sys.argv.pop(1))
    SiteProcess.answer = lambda self, body: os.urandom(1 << 20) * (count >> 20)  # type: ignore[method-assign]
    sys.argv[0] = "vitrail"
    main()
