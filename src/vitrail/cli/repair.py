"""`vitrail repair`: a corrected copy of a site's own file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.core.problems import Problem, VitrailError

if TYPE_CHECKING:
    from vitrail.study import Study


def repair(
    study: Annotated[Path, typer.Argument(help="The study file (TOML), the folder of a run, or this site's kit.")],
    file: Annotated[Path, typer.Argument(help="The site's own table; it is never changed.")],
    feature: Annotated[str, typer.Option(help="The column, or the outcome.")] = "",
    cause: Annotated[str, typer.Option(help="What is wrong with it, in the words of `vitrail look`.")] = "",
    factor: Annotated[float | None, typer.Option(help="unit: what values are multiplied by.")] = None,
    offset: Annotated[float | None, typer.Option(help="unit, offset: what is added; sign: OFFSET - value.")] = None,
    code: Annotated[str | None, typer.Option(help="code: the number that stands for a missing value.")] = None,
    other: Annotated[str | None, typer.Option(help="swapped: the other column.")] = None,
    map_: Annotated[list[str] | None, typer.Option("--map", help="recoded: WRITTEN=MEANT, for each code.")] = None,
    below: Annotated[float | None, typer.Option(help="unit in part: only values below.")] = None,
    above: Annotated[float | None, typer.Option(help="unit in part: only values above.")] = None,
    write: Annotated[Path | None, typer.Option(help="The corrected copy to make; without it, only shown.")] = None,
    word: Annotated[str, typer.Option(help="Who says so, for the note; else the user of this machine.")] = "",
    why: Annotated[str, typer.Option(help="Why, for the note.")] = "",
) -> None:
    """At a site: what a repair would change in its file; with --write, a corrected copy and a note beside it. Never in
    place."""
    import getpass

    from vitrail.explain.corrected import correct, to_text, write_copy
    from vitrail.explain.repair import Repair

    agreed = _study_of(study)
    problems = []
    if agreed.images or agreed.parties:
        problems.append(Problem(str(study), "only tables of sites are repaired.", "Correct the files by hand."))
    for flag, given in (("--feature", feature), ("--cause", cause)):
        if not given:
            problems.append(Problem(flag, "nothing is given.", "`vitrail look` prints the command to copy."))
    levels = dict[str, str]()
    for item in map_ or []:
        written, equals, meant = item.partition("=")
        if not equals or not written.strip() or not meant.strip():
            problems.append(Problem("--map", f"expected WRITTEN=MEANT, got {item!r}.", "Write for example --map 1=2."))
        elif levels.setdefault(written.strip(), meant.strip()) != meant.strip():
            problems.append(Problem("--map", f"{written.strip()!r} means two things.", "Write it once."))
    if problems:
        raise VitrailError("cannot repair", problems)
    wanted = Repair(feature, cause.replace("-", " "), factor, offset, code, other, levels or None, below, above)
    told = correct(file, agreed, [wanted])
    print(to_text(told))
    if write is None:
        copy = file.with_name(f"{file.name.partition('.')[0]}.repaired{''.join(file.suffixes)}")
        print(f"\nNothing was written. To make a corrected copy: --write {copy}")
        return
    made, note = write_copy(told, write, word or getpass.getuser(), why)
    print(f"\nCopy: {made.resolve()}\nNote: {note.resolve()}\n{file} was not touched.")


def _study_of(place: Path) -> Study:
    from vitrail.deploy import enrol
    from vitrail.study import Study

    if (place / "invitation.json").exists():
        return enrol.load_kit(place).study
    return Study.load(place / "study.toml" if place.is_dir() else place)
