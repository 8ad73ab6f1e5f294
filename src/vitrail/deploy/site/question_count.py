"""How often a coordinator may change a question about rows that a site has answered."""

from __future__ import annotations

from vitrail.deploy.protocol.agreement import ANEW, Agreement
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.share.shared import SHARE
from vitrail.storage.journal import QuestionLog

UNCOUNTED = ("hello", "finish", "screen", "mask", "deal", "transfer")  # say nothing of rows, or have own memories


def count_question(log: QuestionLog, agreed: Agreement, asked: Message, within: str) -> None:
    """Asked the same again, a site answers the same. Asked otherwise and otherwise, its rows would tell more than was
    agreed; what it remembers of questions outlives its process. `within`: of a fold, which."""
    words, where = asked.words, asked.kind
    if where in UNCOUNTED or (where == "settle" and not words["score"]):
        return
    where = within + where + "".join(f" {words[k]}" for k in (*WHERE, "step") if k in words)
    protect = agreed.study.protect
    # the same noise under two answers would be told by their difference
    most = 0 if protect.rows or protect.sites else ANEW
    # who else takes part changes no report
    content = asked._replace(words={k: v for k, v in words.items() if k != SHARE})
    log.note(where, content.pack(), most)
