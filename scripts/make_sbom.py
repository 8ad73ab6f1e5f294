"""The bill of materials of a release, CycloneDX 1.5 in JSON: each package with version, licence, what it needs.

    python scripts/make_sbom.py sbom.json        (make sbom)

From the metadata of what is installed here, so it is of this installation: Python version and platform are in it.
"""

from __future__ import annotations

import json
import platform
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from closure import EXTRAS, ROOT, depends, needed, plain


def sbom() -> dict[str, Any]:
    known = needed()
    own = known[ROOT]
    parts = [component(one) for name, one in known.items() if name != ROOT]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {**component(own), "type": "application"},
            "properties": [
                {"name": "python", "value": platform.python_version()},
                {"name": "platform", "value": f"{sys.platform} {platform.machine()}"},
                {"name": "extras", "value": ", ".join(EXTRAS)},
            ],
        },
        "components": parts,
        "dependencies": [
            {"ref": ref(one), "dependsOn": [ref(known[n]) for n in depends(one, known, EXTRAS if name == ROOT else ())]}
            for name, one in known.items()
        ],
    }


def ref(one: Distribution) -> str:
    return f"pkg:pypi/{plain(one.metadata['Name'])}@{one.version.replace('+', '%2B')}"


def component(one: Distribution) -> dict[str, Any]:
    said: dict[str, Any] = {
        "type": "library",
        "bom-ref": ref(one),
        "name": one.metadata["Name"],
        "version": one.version,
        "purl": ref(one),
    }
    if licence := _licence(one):
        said["licenses"] = [licence]
    if about := one.metadata.get("Summary"):
        said["description"] = about
    return said


def _licence(one: Distribution) -> dict[str, Any] | None:
    """As the package states it; its short text, never the whole of it."""
    if expression := one.metadata.get("License-Expression"):
        return {"expression": expression}
    trove = [c.split(" :: ")[-1] for c in one.metadata.get_all("Classifier") or () if c.startswith("License :: ")]
    name = (one.metadata.get("License") or "").strip().split("\n")[0][:100] or (trove[0] if trove else "")
    return {"license": {"name": name}} if name else None


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "sbom.json")
    made = sbom()
    out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {len(made['components'])} packages beside {made['metadata']['component']['name']}")


if __name__ == "__main__":
    main()
