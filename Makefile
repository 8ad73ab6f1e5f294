# One entry for every chore. The virtual environment is made on first use.
PY := .venv/bin/python

.venv/ready: pyproject.toml constraints.txt
	python3 -m venv .venv
	.venv/bin/pip install -q -c constraints.txt -e '.[test,dev]'
	touch $@

.PHONY: demo test quick durations lint types bench docs mutants sbom hashes wheelhouse release
demo: .venv/ready
	.venv/bin/vitrail demo

test: .venv/ready
	$(PY) -m pytest -n 2 --dist loadfile

# For everyday work: all but the tests that start FLARE or a browser or take long, in under three minutes on two cores
quick: .venv/ready
	$(PY) -m pytest -n 2 --dist loadfile -m "not slow"

# Which tests take long, measured anew: tests/durations.json
durations: .venv/ready
	rm -f tests/durations.json
	$(PY) -m pytest --write-durations

# Small wrongs put into a copy of the source, which the tests must notice; SAMPLE=10 tries ten of them
SAMPLE := 0
mutants: .venv/ready
	$(PY) tests/mutants.py --sample $(SAMPLE)

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

types: .venv/ready
	.venv/bin/mypy

bench: .venv/ready
	$(PY) benchmarks/methods/fed_heart.py
	$(PY) benchmarks/speed/speed.py

# The documentation as a site, build/site/index.html, without a network; every link is looked at
docs: .venv/ready
	$(PY) scripts/make_docs.py

# Wheel and sdist, and the demo from the wheel in an empty folder
release: .venv/ready
	bash scripts/try_release.sh

# What a release consists of (CycloneDX), and the hashes of what it is installed from
sbom: .venv/ready
	$(PY) scripts/make_sbom.py sbom.json

# All that an installation needs, in one folder, for machines without a network
wheelhouse: .venv/ready
	.venv/bin/pip wheel -q -w wheelhouse -c constraints.txt '.[deploy]'

hashes: .venv/ready
	$(PY) scripts/hash_constraints.py
