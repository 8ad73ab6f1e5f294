"""`vitrail look --picture`: one picture under each model that the site holds, also a picture that is not the site's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.marked_prototypes import ILL, SITE, WELL, by_hand, squares
from vitrail.analysis.images.gallery import Album
from vitrail.core.errors import VitrailError
from vitrail.data.readers.images import png
from vitrail.deploy.site.model import SiteModel
from vitrail.report.pages.site import render_private
from vitrail.runs.site.inspection import look_behind
from vitrail.runs.site.inspection_text import to_text

FRAME = squares(["well", "ill", "well marked", "ill marked"] * 3, 2)


def test_a_new_picture_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "new.png"
    file.write_bytes(png(FRAME.picture.iloc[2]))
    album = look_behind(by_hand([4]), SITE, FRAME, [], [str(file), "02.png"])
    assert isinstance(album, Album)
    assert album.seen is not None
    known, new = album.seen.cases
    assert (known.name, known.label, known.of) == ("02.png", WELL, ILL)
    assert (new.name, new.label, new.of) == (str(file), "", ILL)
    np.testing.assert_array_equal(known.picture, new.picture)
    assert [v.model for v in new.views] == ["your model", "trained on your pictures alone"]
    assert new.views[0].total == pytest.approx(known.views[0].total)
    text = to_text(album)
    assert f"{file}: no label, model {ILL}" in text
    assert "02.png: label well, model ill" in text
    assert f"your model: {ILL}; probability of {ILL} 1.00, with the place that decides painted over 0." in text
    html = render_private(album)
    assert "02.png: label well, your model ill (wrong)" in html
    assert html.count('<div class="under">') == 2 * 2
    assert "A box does not show what the model relies on" in html


def test_slips_and_broken_files_are_told_together(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not a picture")
    with pytest.raises(VitrailError) as told:
        look_behind(by_hand([4]), SITE, FRAME, [], ["2.png", str(broken), "01.png"])
    text = str(told.value)
    assert len(told.value.problems) == 2
    assert "there is no picture '2.png' in --data, and no such file. Did you mean" in text
    assert "it is not a PNG, JPEG, BMP, TIFF or WebP file." in text


def test_a_site_between_machines_sees_the_same() -> None:
    run = by_hand([4])
    mine = SiteModel(SITE, "run", run.model_of(SITE), rows=run.info["fingerprints"][SITE])
    near, far = (
        look_behind(run, SITE, FRAME, [], ["02.png"], [f"{ILL}:4"]),
        mine.look(FRAME, [], ["02.png"], [f"{ILL}:4"]),
    )
    assert to_text(near) == to_text(far)
    assert f"Without prototype 4 of {ILL}, 3 of 12 predictions" in to_text(far)
