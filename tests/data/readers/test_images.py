"""Reading pictures: every layout gives the same rows, every kind of file the same pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import vitrail as vt
from tests.support.picture_sites import CLASSES, SIDE, encoded, frame_of, soft, study, write_folder
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import Encoder
from vitrail.data.readers import images
from vitrail.data.readers.images import MisfitError, decoded, fit_pixels, stacked
from vitrail.data.readers.tables import clean, read_sites, read_table
from vitrail.data.schema import Images

ROWS = 30


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "north", soft(ROWS))


# --- layouts --------------------------------------------------------------------------------------------------------


def save_npz(place: Path, x: Any, y: Any) -> Path:
    np.savez_compressed(place.with_suffix(".npz"), picture=x, **{"class": y})
    return place.with_suffix(".npz")


def save_parquet(place: Path, cells: list[Any], y: Any) -> Path:
    file = place.with_suffix(".parquet")
    pd.DataFrame({"image": cells, "label": list(y)}).to_parquet(file)
    return file


def save_folder(place: Path, x: Any, y: Any) -> Path:
    for i, (pixels, label) in enumerate(zip(x, y, strict=True)):
        file = place / label / f"patient {i // 5}" / f"{i:02}.PNG"  # below it however deep, in capitals
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(pixels))
    return place


LAYOUTS: dict[str, Callable[[Path, Any, Any], Path]] = {
    "folder": save_folder,
    "npz": save_npz,
    "npz, texts as bytes, labels in a column": lambda p, x, y: save_npz(p, x, np.array(y, "S")[:, None]),
    "parquet of bytes": lambda p, x, y: save_parquet(p, [encoded(c) for c in x], y),
    "parquet of dicts": lambda p, x, y: save_parquet(p, [{"bytes": encoded(c), "path": "a.png"} for c in x], y),
    "parquet of lists": lambda p, x, y: save_parquet(p, [c.tolist() for c in x], y),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_layout_gives_the_same_rows(layout: str, channels: int, tmp_path: Path) -> None:
    x, y = soft(ROWS, channels=0 if channels == 1 else 3), np.array([CLASSES[i % 3 == 0] for i in range(ROWS)])
    agreed = study(channels=channels)
    cleaned = clean(read_table(LAYOUTS[layout](tmp_path / "north", x, y), agreed), agreed)
    rows = Encoder(agreed, {}, {}).matrix(cleaned)
    expected = x[:, None] if channels == 1 else x.transpose(0, 3, 1, 2)
    labels = cleaned["class"].to_numpy()
    if layout == "folder":  # by class, then by name
        order = np.argsort(y, kind="stable")
        expected, y = expected[order], y[order]
    assert rows.dtype == np.uint8
    np.testing.assert_array_equal(rows, expected)
    assert [agreed.target.levels[int(k)] for k in labels] == y.tolist()


def test_arrays_in_parts_are_put_together_again(tmp_path: Path) -> None:
    x, y = soft(ROWS), np.arange(ROWS) % 2
    agreed = study().with_changes(target={"classes": [0, 1], "positive": 1})
    medmnist = {f"{p}_images": x[a] for p, a in (("train", slice(20)), ("val", slice(20, 25)), ("test", slice(25, 30)))}
    labels = {k.replace("images", "labels"): y[: len(v), None] for k, v in medmnist.items()}
    np.savez(tmp_path / "a.npz", **medmnist, **labels)
    np.savez(tmp_path / "b.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    a, b = (clean(read_table(tmp_path / f"{n}.npz", agreed), agreed) for n in "ab")
    np.testing.assert_array_equal(np.stack(list(a.picture)), x[:, None])
    np.testing.assert_array_equal(np.stack(list(b.picture)), x[:, None])
    assert b["class"].tolist() == y.tolist()


def test_sites_from_folders_and_files_together_and_from_one_file(tmp_path: Path) -> None:
    x = soft(3 * ROWS)
    write_folder(tmp_path / "all" / "north", x[:ROWS])
    save_npz(tmp_path / "all" / "south", x[ROWS : 2 * ROWS], [CLASSES[i % 2] for i in range(ROWS)])
    save_parquet(tmp_path / "all" / "west", [encoded(c) for c in x[2 * ROWS :]], [CLASSES[i % 2] for i in range(ROWS)])
    for left_behind in ("README.md", "Thumbs.db", ".DS_Store"):
        (tmp_path / "all" / left_behind).write_text("")
    (tmp_path / "all" / "__MACOSX").mkdir()
    assert {name: len(frame) for name, frame in read_sites(tmp_path / "all", study()).items()} == dict.fromkeys(
        ("north", "south", "west"), ROWS
    )
    names, labels = np.repeat(["b", "a"], ROWS), [CLASSES[i % 2] for i in range(2 * ROWS)]
    np.savez(tmp_path / "one.npz", picture=x[: 2 * ROWS], ward=names, **{"class": labels})
    parts = read_sites(tmp_path / "one.npz", study().with_changes(site_column="ward"))
    assert list(parts) == ["a", "b"]
    np.testing.assert_array_equal(np.stack(list(parts["b"].picture))[:, 0], x[:ROWS])


def test_pictures_of_one_site_lie_in_one_array_and_are_not_copied_again(site: Path) -> None:
    agreed = study()
    frame = read_table(site, agreed)
    whole = frame.picture.iloc[0].base
    assert whole.shape == (ROWS, 1, SIDE, SIDE)
    assert np.shares_memory(stacked(clean(frame, agreed).picture, agreed.images), whole)
    some = frame.iloc[[4, 2, 9]]
    np.testing.assert_array_equal(stacked(some.picture, agreed.images), whole[[4, 2, 9]])
    part = frame.iloc[3:7]
    np.testing.assert_array_equal(stacked(part.picture, agreed.images), whole[3:7])


def test_links_are_followed_once_and_lead_to_no_loop(site: Path, tmp_path: Path) -> None:
    (site / "ill" / "back").symlink_to(site, target_is_directory=True)
    (site / "ill" / "again").symlink_to(site / "ill" / "back", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.png").write_bytes(encoded(soft(1, seed=9)[0]))
    (site / "ill" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    names = list(read_table(site, study()).index)
    assert "ill/linked/x.png" in names
    assert len(names) < 4 * ROWS


def test_pictures_without_a_class_and_a_single_one_can_be_read_to_predict(site: Path, tmp_path: Path) -> None:
    flat = tmp_path / "new"
    flat.mkdir()
    for i, pixels in enumerate(soft(4)):
        (flat / f"{i}.png").write_bytes(encoded(pixels))
    rows = clean(read_table(flat, study()), study(), need_target=False)
    assert list(rows.index) == ["0.png", "1.png", "2.png", "3.png"]
    assert list(rows) == ["picture"]
    assert len(read_table(flat / "2.png", study())) == 1


@pytest.mark.parametrize("how", ["iid", "dirichlet", "sigma_classes", "by_column", "size_skew"])
def test_cuts_keep_pictures(how: str) -> None:
    x = soft(40)
    frame = frame_of(x).assign(ward=["p", "q"] * 20)
    ways = {
        "iid": lambda: vt.partition.iid(frame, 4),
        "dirichlet": lambda: vt.partition.dirichlet(frame, "class", 4, 0.5, 1),
        "sigma_classes": lambda: vt.partition.sigma_classes(frame, "class", 4, 1),
        "by_column": lambda: vt.partition.by_column(frame, "ward"),
        "size_skew": lambda: vt.partition.size_skew(frame, 4, 0.5, 1),
    }
    parts = ways[how]()
    assert sum(map(len, parts.values())) == 40
    for part in parts.values():
        np.testing.assert_array_equal(np.stack(list(clean(part, study()).picture))[:, 0], x[part.index])


def test_frames_of_pictures_in_every_form_train() -> None:
    x = soft(24)
    forms = [list(x), [encoded(c) for c in x], [c[None] for c in x], [Image.fromarray(c) for c in x]]
    sites = {f"s{i}": frame_of(x).assign(picture=pd.Series(cells, dtype=object)) for i, cells in enumerate(forms)}
    run = vt.federate(study(), sites, method="fedavg", rounds=1)
    assert sorted(run.sites) == list(sites)
    assert run.scores().value.notna().all()


# --- one picture ----------------------------------------------------------------------------------------------------


def test_orientation_palette_alpha_and_cmyk() -> None:
    wide = np.zeros((8, 20, 3), np.uint8)
    wide[:, :5] = (200, 30, 40)
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
    upright = decoded(encoded(wide, "PNG", exif=turned))
    assert upright.shape == (20, 8, 3)
    assert upright[0, 0].tolist() == [200, 30, 40]
    assert upright[-1, 0].tolist() == [0, 0, 0]
    np.testing.assert_array_equal(decoded(encoded(Image.fromarray(wide).quantize(4))), wide)
    see_through = np.dstack([wide, np.full((8, 20), 7, np.uint8)])
    np.testing.assert_array_equal(decoded(encoded(see_through)), wide)
    assert np.abs(decoded(encoded(Image.fromarray(wide).convert("CMYK"), "TIFF")).astype(int) - wide).max() <= 1
    grey = Image.fromarray(wide[:, :, 0])
    assert decoded(encoded(grey.convert("LA"))).tolist() == wide[:, :, 0].tolist()
    assert decoded(encoded(grey.point(lambda v: 255 * (v > 0)).convert("1"))).max() == 255


def test_bits() -> None:
    deep = np.linspace(0, 4095, SIDE * SIDE).reshape(SIDE, SIDE).astype(np.uint16)
    twelve = Images(size=(SIDE, SIDE), bits=12)
    read = decoded(encoded(deep))
    assert read.max() == 4095
    np.testing.assert_array_equal(fit_pixels(read, twelve)[0], deep >> 4)
    np.testing.assert_array_equal(fit_pixels((deep >> 4).astype(np.uint8), twelve)[0], deep >> 4)
    with pytest.raises(MisfitError, match="expected values from 0 to 255, got 0 to 4095"):
        fit_pixels(read, Images(size=(SIDE, SIDE)))
    with pytest.raises(MisfitError, match="expected values from 0 to 1023"):
        fit_pixels(read, Images(size=(SIDE, SIDE), bits=10))


def test_fit_resize_brings_all_to_one_size_and_colour() -> None:
    small = Images(size=(16, 20), channels=3, fit="resize")
    for pixels in (soft(1)[0], soft(1, channels=3)[0], np.zeros((90, 40, 4), np.uint8), np.zeros((9, 9, 1), np.uint8)):
        assert fit_pixels(pixels, small).shape == (3, 16, 20)
    grey = Images(size=(SIDE, SIDE), fit="resize")
    red = np.zeros((SIDE, SIDE, 3), np.uint8) + np.array([255, 0, 0], np.uint8)
    assert set(fit_pixels(red, grey).ravel()) == {76}


def test_without_pillow_it_says_what_to_install(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[image\]'"):
        read_table(site, study())


def test_a_bomb_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encoded(Image.new("1", (3000, 3000)))
    monkeypatch.setattr(images, "MOST_PIXELS", 1 << 20)
    with pytest.raises(MisfitError, match="3000 x 3000 pixels"):
        decoded(raw)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(MisfitError, match="too large"):
        decoded(raw)
