"""A run: same result however it is run, stopped, saved or loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch

import vitrail as vt
from vitrail.data.encoding import columns
from vitrail.metrics.scores import decide
from vitrail.runs.folder import Folder


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return vt.datasets.heart_disease()


@pytest.fixture(scope="module")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 4}, network={"hidden": [8]})


def same_models(one: vt.Run, other: vt.Run) -> bool:
    assert one.models.keys() == other.models.keys()
    return all(torch.equal(v, other.models[site][k]) for site, model in one.models.items() for k, v in model.items())


def test_the_notebook_of_the_readme(sites, tmp_path) -> None:
    study = vt.Study.infer(sites, target="disease")
    run = vt.federate(study, sites, method="fedavg", rounds=3, seed=1)
    scores = run.scores()
    assert list(scores.columns) == ["site", "metric", "value"]
    assert set(scores.site) == set(sites)
    predicted = run.predict("cleveland", sites["cleveland"])
    assert list(predicted.columns) == [*study.target.levels, "unsure"]
    assert len(predicted) == 303
    assert np.allclose(predicted.drop(columns="unsure").sum(axis=1), 1, atol=1e-5)
    study.save(tmp_path / "study.toml")
    assert vt.Study.load(tmp_path / "study.toml") == study
    run.save(tmp_path / "run")
    again = vt.Run.load(tmp_path / "run")
    pdt.assert_frame_equal(again.scores(), scores)
    pdt.assert_frame_equal(again.predict("cleveland", sites["cleveland"]), predicted)
    prox = vt.federate(study, sites, method=vt.methods.FedProx(mu=0.5), rounds=3, seed=1)
    assert not same_models(prox, run)


def test_predictions_give_the_scores(study, sites) -> None:
    """What `scores` says is what `predict` does on the hold-out rows."""
    from vitrail.data.splitting import split_rows

    run = vt.federate(study, sites, method="apfl", seed=3)
    for site, frame in sites.items():
        _, test = split_rows(frame.disease.to_numpy(), study, 3, site)
        rows = frame.iloc[test]
        answers = run.predict(site, rows)[list(study.target.levels)].to_numpy()
        right = decide(answers, np.array(run.encoders[site].thresholds)) == rows.disease.to_numpy()
        said = run.scores().query("site == @site and metric == 'accuracy'").value.item()
        assert said == pytest.approx(right.mean())


@pytest.mark.parametrize("method", [name for name, kind in vt.methods.TABLE.items() if not kind.catalogue.required_net])
def test_every_method_saves_and_loads(method, study, sites, tmp_path) -> None:
    asked = study.with_changes(screen={"ask": method == vt.methods.DEFAULT})  # the same for every method
    run = vt.federate(asked, sites, method=method, out=tmp_path / "run", dropout_rate=0.2)
    loaded = vt.Run.load(tmp_path / "run")
    assert same_models(run, loaded)
    pdt.assert_frame_equal(run.scores(), loaded.scores())
    pdt.assert_frame_equal(run.ledger, loaded.ledger)
    pdt.assert_frame_equal(run.predict("va", sites["va"]), loaded.predict("va", sites["va"]))
    assert loaded.method == run.method
    assert not list((tmp_path / "run").rglob("*state-*")), "checkpoints are gone after the end"


def test_private_files_are_apart(study, sites, tmp_path) -> None:
    """What the coordinator may see holds nothing of a site's own layers, and no row."""
    run = vt.federate(study, sites, method="fedper", out=tmp_path / "run", checkpoint_seconds=0)
    shared = {p.name for p in (tmp_path / "run" / "coordinator").iterdir()}
    assert shared == {"shared.safetensors"}
    assert not any("head" in name for name in run.shared)
    for site in sites:
        private = {p.name for p in (tmp_path / "run" / "sites" / site).iterdir()}
        assert private == {"model.safetensors", "encoder.json", "held_out.csv", "held_out_summary.json", "marks.json"}
        assert any("head" in name for name in run.models[site])


KILLED = """
import sys, vitrail as vt
study = vt.Study.load(sys.argv[1])
vt.federate(study, vt.datasets.heart_disease(), method=sys.argv[2], out=sys.argv[3], resume=sys.argv[4] == "resume",
            dropout_rate=0.3, checkpoint_seconds=0)
"""


def test_stopped_and_resumed_is_bit_identical(study, sites, tmp_path) -> None:
    """In one process: with what sites keep between rounds."""
    given = {"method": "scaffold", "dropout_rate": 0.3, "rounds": 12}
    whole = vt.federate(study, sites, **given)

    def stop(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vt.federate(study, sites, **given, out=tmp_path / "run", checkpoint_seconds=0, progress=stop)
    back = vt.federate(study, sites, **given, out=tmp_path / "run", checkpoint_seconds=0, resume=True)
    assert same_models(whole, back)
    pdt.assert_frame_equal(whole.scores(), back.scores())
    pdt.assert_frame_equal(whole.ledger, back.ledger)


@pytest.mark.parametrize(("method", "rounds"), [("fine_tune", 16)])
def test_killed_and_resumed_is_bit_identical(method, rounds, study, sites, tmp_path) -> None:
    longer = study.with_changes(training={"rounds": rounds})
    longer.save(tmp_path / "study.toml")
    whole = vt.federate(longer, sites, method=method, dropout_rate=0.3)
    out, kills = tmp_path / "run", 0
    for attempt in range(8):
        command = [
            sys.executable,
            "-c",
            KILLED,
            tmp_path / "study.toml",
            method,
            out,
            "resume" if attempt else "new",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        if attempt < 2:  # let it get some way, then kill it without warning
            wanted, patience = attempt * 5 + 3, time.monotonic() + 60
            while process.poll() is None and time.monotonic() < patience and round_of(out) < wanted:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += process.returncode == -signal.SIGKILL
            continue
        _, error = process.communicate()
        assert process.returncode == 0, error.decode()
        break
    assert kills >= 1
    back = vt.Run.load(out)
    assert same_models(whole, back)
    pdt.assert_frame_equal(whole.scores(), back.scores())
    pdt.assert_frame_equal(whole.ledger, back.ledger)
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events[0] == "started"
    assert "resumed" in events
    assert events[-1] == "finished"


def round_of(out: Path) -> int:
    try:
        at = json.loads((out / "checkpoint.json").read_text())
        return int(at["round"]) + 1000 * int(at["stage"])
    except (OSError, ValueError):
        return -1


def test_every_checkpoint_is_whole(study, sites, tmp_path) -> None:
    """A kill between any two writes leaves a checkpoint that can be resumed: we stop at each os.replace in turn."""
    whole = vt.federate(study, sites, method="ditto")
    real, stopped_at = os.replace, 0
    for stop in range(1, 60, 7):
        out, count = tmp_path / f"run-{stop}", 0

        class Killed(BaseException):
            pass

        def replace(a, b, stop=stop, killed=Killed):
            nonlocal count
            count += 1
            if count == stop:
                raise killed
            real(a, b)

        os.replace = replace
        try:
            vt.federate(study, sites, method="ditto", out=out, checkpoint_seconds=0)
        except Killed:
            stopped_at += 1
        finally:
            os.replace = real
        if not (out / "run.json").exists():
            continue  # killed before anything was promised: it is started anew
        again = vt.federate(study, sites, method="ditto", out=out, resume=True, checkpoint_seconds=0)
        assert same_models(whole, again), f"stopped at write {stop}"
    assert stopped_at >= 5


def test_two_runs_never_share_a_folder(study, sites, tmp_path) -> None:
    out = tmp_path / "run"
    vt.federate(study, sites, out=out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(vt.VitrailError, match="the folder is not empty"):
        vt.federate(study, sites, out=out)
    with pytest.raises(vt.VitrailError, match="this is another run") as caught:
        vt.federate(study, sites, method="ditto", seed=9, out=out, resume=True)
    assert len(caught.value.problems) >= 2
    assert before == {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    held = Folder(tmp_path / "other", resume=False)
    with pytest.raises(vt.VitrailError, match=r"another process holds it|the folder is not empty"):
        vt.federate(study, sites, out=tmp_path / "other")
    held.close()
    with pytest.raises(vt.VitrailError, match="no run to resume"):
        vt.federate(study, sites, out=tmp_path / "nothing", resume=True)


def test_resume_refuses_other_data(study, sites, tmp_path) -> None:
    vt.federate(study, sites, out=tmp_path / "run")
    changed = {**sites, "va": sites["va"].assign(age=50)}
    with pytest.raises(vt.VitrailError, match="fingerprints"):
        vt.federate(study, changed, out=tmp_path / "run", resume=True)


def test_engines_give_the_same_scores(study, sites) -> None:
    one = vt.federate(study, sites, method="scaffold")
    other = vt.federate(study, sites, method="scaffold", engine="looped")
    assert one.scores().value.to_numpy() == pytest.approx(other.scores().value.to_numpy(), abs=0.03)
    for site in sites:
        assert all(torch.allclose(one.models[site][k], v, atol=1e-4) for k, v in other.models[site].items())


def test_sites_of_any_size(study, sites) -> None:
    """One with fewer rows than a batch, one of a single class, one of two rows."""
    va, swiss = sites["va"], sites["switzerland"]
    quiet = study.with_changes(screen={"ask": False})  # it is the same for every method: once will do
    odd = {**sites, "tiny": va.head(7), "sick": swiss[swiss.disease == 1], "two": va[va.disease == 0].head(2)}
    for method in vt.methods.named(lambda kind: not kind.catalogue.required_net):
        run = vt.federate(study if method == vt.methods.DEFAULT else quiet, odd, method=method)
        assert all(torch.isfinite(v).all() for model in run.models.values() for v in model.values())
        got = run.scores().pivot(index="site", columns="metric", values="value")
        assert np.isnan(got.loc["sick", "auc"])
        assert not got["accuracy"].isna().any()


def test_a_number_as_target(sites, tmp_path) -> None:
    frames = {k: v.dropna(subset=["thalach"]) for k, v in sites.items()}
    study = vt.Study.infer(frames, target="thalach")
    assert study.target.kind == "number"
    study = study.with_changes(training={"rounds": 40, "lr": 0.002}, standardise="global")
    run = vt.federate(study, frames, method="fedavg", out=tmp_path / "run")
    start = (
        run.history[(run.history["round"] == 0) & (run.history.metric == "rmse") & (run.history.split == "test")]
        .set_index("site")
        .value
    )
    end = run.scores().query("metric == 'rmse'").set_index("site").value
    assert (end < start).sum() >= 3, "it learns"
    heart_rate = vt.Run.load(tmp_path / "run").predict("cleveland", frames["cleveland"])
    assert 100 < heart_rate.thalach.mean() < 180, "in its own unit"
    assert list(heart_rate.columns) == ["thalach"], "of numbers no doubt is told"


def test_absence_is_planned_or_drawn(study, sites, tmp_path) -> None:
    run = vt.federate(study, sites, out=tmp_path / "run", away={"va": [(2, 3)]})
    messages = run.ledger.query("stage == 'train' and direction == 'from site'").set_index("site").messages
    assert messages.to_dict() == {"cleveland": 4, "hungarian": 4, "switzerland": 4, "va": 2}
    often = vt.federate(study.with_changes(training={"rounds": 60}), sites, dropout_rate=0.5)
    sent = often.ledger.query("stage == 'train' and direction == 'from site'").messages
    assert 0.3 < sent.mean() / 60 < 0.7
    bad = {"engine": "fast", "dropout_rate": 1.5, "away": {"nowhere": [(3, 1)]}, "device": "tpu9"}
    with pytest.raises(vt.VitrailError) as caught:
        vt.federate(study, sites, **bad)
    assert len(caught.value.problems) >= 5


def test_global_standardisation_is_on_the_wire(study, sites) -> None:
    from vitrail.runs import Plan

    lines = Plan(study.with_changes(standardise="global"), vt.methods.FedAvg()).wire()
    said = [(x.direction, x.name, x.shape) for x in lines if x.stage == "standardise"]
    assert ("from site", "sum", (6,)) in said
    assert ("to site", "mean", (6,)) in said
    own = study.with_changes(standardise="local")
    assert not [x for x in Plan(own, vt.methods.FedAvg()).wire() if x.stage == "standardise"]
    run = vt.federate(study.with_changes(standardise="global"), sites)
    assert run.ledger.query("stage == 'standardise'").bytes.sum() > 0
    means = {tuple(e.mean.values()) for e in run.encoders.values()}
    assert len(means) == 1


def test_ledger_adds_up(study, sites) -> None:
    """Bytes sent = size of the declared tensors x rounds."""
    run = vt.federate(study, sites, method="scaffold")
    for direction in ("to site", "from site"):
        per_site = sum(x.bytes * x.rounds for x in run.plan.wire() if x.direction == direction)
        got = run.ledger.query("direction == @direction").groupby("site").bytes.sum()
        assert (got == per_site).all()
    pooled = vt.federate(study, sites, method="centralized")
    rows = pooled.sizes.set_index("site").train_rows
    sent = pooled.ledger.query("stage == 'pool' and direction == 'from site'").set_index("site").bytes
    assert (sent == rows * 4 * (len(columns(study)) + 1)).all()
