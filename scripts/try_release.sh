#!/usr/bin/env bash
# Wheel and sdist, made as for a release, and the wheel used from an empty folder by somebody who has no checkout:
#   bash scripts/try_release.sh [PYTHON]      PYTHON has what constraints.txt pins, and `build`
# The wheel is made from the sdist, so that what the sdist lacks is seen.
set -euo pipefail
python=$(realpath -s "${1:-.venv/bin/python}")
source=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

mkdir "$place/source"
(cd "$source" && tar -c --exclude='*.egg-info' --exclude=__pycache__ pyproject.toml README.md LICENSE src) | tar -x -C "$place/source"
"$python" -m build -q --outdir "$place/dist" "$place/source"
"$python" -m pip install -q --no-deps --target "$place/installed" "$place"/dist/*.whl
mkdir "$place/empty" && cd "$place/empty"
export PYTHONPATH="$place/installed"
"$python" -P -c "import vitrail, sys; sys.exit(not vitrail.__file__.startswith('$place/installed'))"
"$python" -P -m vitrail.cli --version
"$python" -P -m vitrail.cli demo > told.txt || { cat told.txt; exit 1; }
pages=$(find . -name '*.html' | wc -l)
echo "Made $(cd "$place/dist" && ls | tr '\n' ' '); the demo, from the wheel, wrote $pages pages in ${SECONDS} s."
test "$pages" -gt 0
