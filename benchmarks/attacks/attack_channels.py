"""What a site and the coordinator get out of other sites over FLARE's own channels.

    python benchmarks/attacks/attack_channels.py    # writes results/attack_channels.md

The federation of tests/deploy/transport/flare/test_flare_channels.py over real FLARE: `St Mary` runs what we ship; of
`boxed` the guard
is taken away, of `open` the guard and the box. First an evil coordinator and, through it, an evil site send every
request; then the evil site does so through a coordinator as we ship it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parents[1]), *(p for p in sys.path if p and Path(p).resolve() != HERE)]

from tests.support.deploy import channels as tried  # noqa: E402

RESULTS = HERE / "results" / "attack_channels.md"


class Places:
    """What pytest would give."""

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"vitrail-{name}-"))


def outcome(rows: list[str], code: str, answer: str) -> str:
    if any(row in answer for row in rows):
        return "ROWS"
    if code == "timeout":
        return "no answer"
    if "larger than" in answer or "rejected" in answer:
        return "refused"
    return "denied" if "denied" in answer else "error" if "exception" in answer else f"answered ({len(answer)} bytes)"


def main() -> None:
    fixtures = tried.federation.__wrapped__(Places())
    federation = next(fixtures)
    columns = dict[str, dict[tuple[str, str], str]]()
    try:
        waiting = tried.waiting.__wrapped__(federation)
        evil, coordinator = federation.kit("evil") / "flare", federation.folder / "flare" / "coordinator"
        plans = tried.on(federation, *tried.VICTIMS)

        def note(name: str, workspace: Path) -> None:
            stolen = tried.attack(federation, workspace, plans)
            rows = {v: federation.data(v).read_text().splitlines()[1:] for v in tried.VICTIMS}
            columns[name] = {key: outcome(rows[key[0]], *found) for key, found in stolen.items()}

        note("evil coordinator", coordinator)
        note("evil site, evil coordinator", evil)
        tried.honest.__wrapped__(federation, waiting)
        note("evil site, our coordinator", evil)
    finally:
        next(fixtures, None)
    text = [
        f"# What comes back over FLARE's own channels, {time.strftime('%Y-%m-%d')}",
        "",
        "Over real FLARE on one machine (`benchmarks/attacks/attack_channels.py`). `St Mary` is as we ship it; `boxed` has no",
        'guard, `open` neither guard nor Landlock: they are the controls. "ROWS": rows of the site\'s file came back.',
        "",
        f"| request | site | {' | '.join(columns)} |",
        f"| --- | --- |{' --- |' * len(columns)}",
    ]
    for victim, what in sorted(plans, key=lambda key: key[1]):
        text.append(f"| {what} | {victim} | {' | '.join(told[victim, what] for told in columns.values())} |")
    RESULTS.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
