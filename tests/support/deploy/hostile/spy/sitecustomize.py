"""Writes down what FLARE registers a handler for, in the workspace: [module, kind, channel, topic] in each line."""

import functools
import json
import sys

if "vitrail.deploy.transport.flare.process" in sys.orig_argv:
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver
    from nvflare.private.aux_runner import AuxRunner

    MODULE = next(word for word in sys.orig_argv if word.startswith("nvflare."))

    def spied(kind, plain):
        @functools.wraps(plain)
        def register(self, *words, **named):
            first = list(words) + [named[key] for key in ("channel", "topic") if key in named]
            with open("registered.jsonl", "a") as file:
                file.write(json.dumps([MODULE, *(["aux", first[0]] if kind == "aux" else first[:2])]) + "\n")
            return plain(self, *words, **named)

        return register

    for owner, method, kind in (
        (CoreCell, "register_request_cb", "request"),
        (ByteReceiver, "register_callback", "stream"),
        (AuxRunner, "register_aux_message_handler", "aux"),
    ):
        setattr(owner, method, spied(kind, getattr(owner, method)))
