"""Two examples for every verb: the end of its --help. A test reads each of them as the command line would.

METHOD stands for one of `vitrail methods`: nothing here knows one by its name.
"""

from __future__ import annotations

EXAMPLES = {
    "demo": ("vitrail demo", "vitrail demo vertical --out runs/parties"),
    "check": ("vitrail check study.toml ours.csv", "vitrail check study.toml ours.csv --pooled screen.json"),
    "wire": ("vitrail wire METHOD study.toml", "vitrail wire METHOD study.toml --sites 8"),
    "look": (
        "vitrail look runs/first --site north --data ours.csv",
        "vitrail look --kit north.kit --data ours.csv --feature age",
    ),
    "repair": (
        "vitrail repair study.toml ours.csv --feature chol --cause unit --factor 38.67",
        "vitrail repair study.toml ours.csv --from runs/first --site north --write fixed.csv",
    ),
    "known": (
        'vitrail known study.toml screen.json --site north --feature age --why "other ward"',
        'vitrail known study.toml runs/first --site north --feature chol --why "new lab"',
    ),
    "predict": (
        "vitrail predict runs/first --site north --data new.csv",
        "vitrail predict north.kit new.csv --out answers.csv",
    ),
    "explain": (
        "vitrail explain runs/first --site north --data ours.csv --row 17",
        "vitrail explain runs/first --data data/",
    ),
    "export": (
        "vitrail export runs/first --site north --to north.onnx",
        "vitrail export north.kit --to north.vitrail",
    ),
    "card": (
        "vitrail card runs/first --site north --data ours.csv",
        "vitrail card north.kit --data ours.csv --out card.html",
    ),
    "request": (
        "vitrail request north.invitation --kit north.kit",
        'vitrail request "unnamed 1.invitation" --as Falcon',
    ),
    "join": (
        "vitrail join north.kit --data ours.csv --approval north.approval",
        "vitrail join north.kit --data ours.csv --watts 8 --grid 120 --most-share 0.5",
    ),
    "outbox": ("vitrail outbox north.kit", "vitrail outbox north.kit --show 7"),
    "leave": ("vitrail leave north.kit", "vitrail leave north.kit --yes"),
    "doctor": ("vitrail doctor north.kit --data ours.csv", "vitrail doctor study.toml"),
    "adopt": (
        "vitrail adopt runs/fit --site south --data south.csv --out runs/with-south",
        "vitrail adopt runs/fit --site south --data south/ --out runs/with-south",
    ),
    "init": ("vitrail init data/ --target died", "vitrail init all.csv --target died --site-column hospital"),
    "screen": ("vitrail screen study.toml --data data/", "vitrail screen study.toml --data data/ --out runs/screen"),
    "run": (
        "vitrail run study.toml --data data/ --out runs/first",
        "vitrail run study.toml --data data/ --out runs/first --resume",
    ),
    "compare": (
        "vitrail compare study.toml --data data/ --out runs/compared",
        "vitrail compare study.toml --data data/ --out runs/all --methods all --resume",
    ),
    "match": ("vitrail match study.toml --data parties/", "vitrail match study.toml --data parties/ --places"),
    "report": ("vitrail report runs/first", "vitrail report runs/compared --out compared.html"),
    "ui": ("vitrail ui runs/first", "vitrail ui runs/first --port 8080"),
    "verify": ("vitrail verify runs/first", "vitrail verify runs/first --authority north.invitation"),
    "invite": (
        "vitrail invite study.toml --site north --site south --address hub.example.org:8002",
        'vitrail invite study.toml --site east --pseudonym "St Mary=site-7" --unnamed 1',
    ),
    "approve": ("vitrail approve north.request", "vitrail approve north.request --study study.toml"),
    "remove": ("vitrail remove north", "vitrail remove north --study study.toml --yes"),
    "serve": ("vitrail serve study.toml", "vitrail serve study.toml --quorum 3 --page"),
    "methods": ("vitrail methods", "vitrail methods | less -S"),
    "tune": (
        "vitrail tune study.toml --data data/",
        "vitrail tune study.toml --data data/ --grid lr=0.001,0.01 --grid epochs=1,3",
    ),
    "transfer": (
        "vitrail transfer study.toml --data data/",
        "vitrail transfer study.toml --data data/ --train-with top:2 --user north",
    ),
    "alike": (
        "vitrail alike study.toml --data data/",
        "vitrail alike study.toml --data data/ --out runs/alike",
    ),
    "columns": (
        "vitrail columns study.toml --data data/",
        "vitrail columns study.toml --data data/ --site north --column chol --out runs/columns",
    ),
    "contribution": (
        "vitrail contribution runs/first --user north --data data/",
        "vitrail contribution runs/first --user north --data data/ --method shapley",
    ),
}


def examples_of(verb: str) -> str:
    """As the end of a verb's help."""
    return "\n".join(["Examples", *(f"  {line}" for line in EXAMPLES.get(verb, ()))])
