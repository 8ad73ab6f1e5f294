"""What a release is installed from: hashes of everything, and a bill of materials that other tools can read."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

PLACE = Path(__file__).parent.parent / "scripts"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PLACE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_every_package_of_a_release_has_hashes() -> None:
    assert script("hash_constraints").wrong() == []


def test_a_list_that_does_not_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = script("hash_constraints")
    text = hashes.HASHED.read_text().replace("numpy==", "numpyy==")
    first = re.search(r"^rich==\S+ \\\n(    --hash=\S+( \\)?\n)+", text, re.M)
    assert first is not None
    (tmp_path / "h.txt").write_text(text.replace(first[0], first[0].split(" ")[0] + "\n"))
    monkeypatch.setattr(hashes, "HASHED", tmp_path / "h.txt")
    told = "\n".join(hashes.wrong())
    assert re.search(r"numpy==\S+ is needed and not there", told)
    assert re.search(r"rich==\S+ is needed and not there", told)
    assert "numpyy is there and not needed" in told
    assert "1 lines have no hash" in told


def test_files_of_one_version_are_found() -> None:
    mark = "a" * 64
    names = ["a_b-1.0-py3-none-any.whl", "a_b-1.0.1-py3-none-any.whl", "a-b-1.0.tar.gz", "a_b-11.0.tar.gz"]
    page = "".join(f'<a href="https://x/{n}#sha256={i}{mark[1:]}">' for i, n in enumerate(names))
    page += '<a href="https://x/a_b-1.0-cp311-none-any.whl">'  # one without a hash is no help
    assert script("hash_constraints").files_of(page, "a-b", "1.0") == {f"0{mark[1:]}", f"2{mark[1:]}"}


def test_the_bill_of_materials_has_what_the_schema_requires() -> None:
    """CycloneDX 1.5: bomFormat and specVersion; of a component type and name; refs that are unique and known."""
    made = script("make_sbom").sbom()
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["serialNumber"])
    parts = [made["metadata"]["component"], *made["components"]]
    assert {p["type"] for p in parts} == {"application", "library"}
    assert all(p["name"] and p["version"] and p["purl"].startswith("pkg:pypi/") for p in parts)
    refs = [p["bom-ref"] for p in parts]
    assert len(set(refs)) == len(refs)
    assert {d["ref"] for d in made["dependencies"]} == set(refs)
    assert all(set(d["dependsOn"]) <= set(refs) for d in made["dependencies"])
    for p in parts:
        for licence in p.get("licenses", ()):
            assert set(licence) in ({"expression"}, {"license"})
    names = {p["name"].lower() for p in parts}
    assert {"vitrail", "torch", "nvflare", "cryptography"} <= names
    assert not {"pytest", "ruff", "mypy"} & names  # what a hospital does not install is not in it


def test_what_the_threat_model_rests_on_is_there() -> None:
    root = PLACE.parent
    text = (root / "SECURITY.md").read_text()
    named = set(re.findall(r"(?:tests|benchmarks|docs)/[\w/.-]+\.(?:py|md)", text))
    assert len(named) > 15
    assert not [path for path in named if not (root / path).exists()]


def test_a_wheel_holds_every_file_that_the_source_reads() -> None:
    """What is no Python has to be named in pyproject.toml: templates, style sheets, shipped tables, attack evidence."""
    source = PLACE.parent / "src" / "vitrail"
    patterns = tomllib.loads((PLACE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {path for pattern in patterns["vitrail"] for path in source.glob(pattern)}
    others = {p for p in source.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert others - packed == set()
    assert (source / "deploy" / "consent" / "templates" / "site.txt") in packed


def test_version_changelog_and_citation_agree() -> None:
    """One version, in pyproject.toml; the others repeat it."""
    root = PLACE.parent
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    newest = re.search(r"^(?:## \[|This will be version )(\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == version


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    from mkdocs.exceptions import Abort

    docs, pages = script("make_docs"), tmp_path / "pages"
    (pages / "docs" / "decisions").mkdir(parents=True)
    (pages / "benchmarks").mkdir()
    for name in docs.TOP:
        (pages / name).write_text("# A page\n\n## Here\n\n[fine](SECURITY.md#here)\n")
    docs.build(pages, tmp_path / "site")
    assert "fine" in (tmp_path / "site" / "index.html").read_text()
    for wrong in ("nowhere.md", "SECURITY.md#not-there"):
        (pages / "README.md").write_text(f"# A page\n\n[wrong]({wrong})\n")
        with pytest.raises(Abort):
            docs.build(pages, tmp_path / "site")


def test_links_to_what_is_no_page_are_text(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "tool.py").touch()
    page = tmp_path / "pages" / "a.md"
    page.write_text("[tool](tool.py) [gone](gone.py) [web](https://example.org)")
    assert script("make_docs").linked(page, tmp_path, tmp_path / "pages") == (
        "tool [gone](gone.py) [web](https://example.org)"
    )
