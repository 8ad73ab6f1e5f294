"""FLARE's processes as they were: no guard, all of FLARE's own request processors. Only for controls."""

import sys

if "vitrail.deploy.transport.flare.process" in sys.orig_argv:
    from vitrail.deploy.transport.flare import guard as flare_guard

    flare_guard.problem_of = lambda *_: ""
    flare_guard._trim_requests = lambda: None
