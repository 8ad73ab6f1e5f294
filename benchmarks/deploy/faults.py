"""One long study between machines, and everything that goes wrong in it.

    python benchmarks/deploy/faults.py --faults 60        # as root, on Linux: it makes its own network namespaces
    python benchmarks/deploy/faults.py --masked           # FedAvg under masks, with three kinds of faults more

The heart study (iFedAvg, four sites, `vitrail serve` and `vitrail join`), each site in a network namespace of its own
with a small disk. Faults are drawn at random, one after the other, each as soon as the study goes on after the one
before: kill -9 of a site, of the coordinator, of FLARE's processes and FLARE's jobs at either end; a site that is
stopped (SIGSTOP) for longer than the deadline; a cable that is cut; a line with 200 ms (a proxy
of ours, since netem is not in every kernel) that loses 2 % of the packets (nft, where it is installed); a full disk; a
site whose clock is a day ahead (with libfaketime, where it is installed). Three of four sites are enough for a round.

It must hold: the study ends; no round is counted twice; every site ends with its own model; scores are within the noise
of undisturbed runs (the local engine, several seeds). Writes results/faults.md with the log in words.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fault_sums import between_legs, damage_coordinator, damage_site, told_twice

import vitrail as vt
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.site.process import form_of
from vitrail.deploy.transport.supervisor import children_of

DEADLINE = 8.0
QUORUM = 3
PATIENCE = 240.0  # seconds after a fault in which the study must go on
PORT = 18455
NFT = shutil.which("nft")
FAKETIME = next(iter([*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None]))


def sh(words: str, check: bool = True) -> None:
    subprocess.run(words.split(), check=check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Proxy:
    """Between one site and the coordinator: a line that can be slow. (Not every kernel has netem.)"""

    def __init__(self, port: int) -> None:
        self.slow = False
        self.door = socket.create_server(("10.77.0.1", port), backlog=32)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.door.accept()
            try:
                far = socket.create_connection(("10.77.0.1", PORT), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if self.slow:  # without nft, what is lost comes later
                    time.sleep(0.2 + (0.4 if not NFT and random.random() < 0.02 else 0.0))
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class World:
    """Coordinator here, each site behind its own cable."""

    def __init__(self, place: Path, rounds: int, masked: bool = False) -> None:
        self.place, self.tables = place, heart_disease()
        self.names = list(self.tables)
        self.study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
            method={"name": "fedavg" if masked else "ifedavg"},
            training={"rounds": rounds},
            protect={"sum": "masked" if masked else "plain", "scores": "exact"},
        )
        (place / "study.toml").write_text(self.study.to_toml())
        self.unplug()  # what an earlier run left behind
        sh("ip link add vtbr type bridge")
        sh("ip addr add 10.77.0.1/24 dev vtbr")
        sh("ip link set vtbr up")
        for i, name in enumerate(self.names):
            sh(f"ip netns add vt{i}")
            sh(f"ip link add vtc{i} type veth peer name eth0 netns vt{i}")
            sh(f"ip link set vtc{i} master vtbr up")
            sh(f"ip -n vt{i} addr add 10.77.0.{10 + i}/24 dev eth0")
            sh(f"ip -n vt{i} link set eth0 up")
            sh(f"ip -n vt{i} link set lo up")
            home = place / f"{name}.home"
            home.mkdir(mode=0o700)
            sh(f"mount -t tmpfs -o size=96m,mode=0700 tmpfs {home}")
        self.lines = [Proxy(PORT + 1 + i) for i in range(len(self.names))]
        self.folder = enrolment.invite(place / "study.toml", self.names, f"10.77.0.1:{PORT}").resolve()
        self.sites: dict[str, subprocess.Popen[bytes]] = {}
        self.serve: subprocess.Popen[bytes] | None = None
        self.kits = dict[str, enrolment.Kit]()
        for name, frame in self.tables.items():
            frame.to_csv(place / f"{name}.csv", index=False)
            made = enrolment.request(self.folder / "invitations" / f"{name}.invitation", None, place / f"{name}.home")
            enrolment.approve(self.folder, made.file)
            self.kits[name] = enrolment.load_kit(made.kit)
        self.hashes = dict[str, str]()  # of the form that each site accepts
        for name in self.names:
            self.hashes[name] = form_of(enrolment.accept(self.kits[name].folder, approval_of(self.folder, name))).hash
            told = json.loads((self.kits[name].folder / "invitation.json").read_text())
            told["address"] = f"10.77.0.1:{PORT + 1 + self.names.index(name)}"
            (self.kits[name].folder / "invitation.json").write_text(json.dumps(told))
        self.vitrail = str(Path(sys.executable).with_name("vitrail"))

    def start_site(self, name: str, clock: str = "") -> None:
        words = f"ip netns exec vt{self.names.index(name)} {self.vitrail} join {self.kits[name].folder}"
        words += f" --data {self.place / name}.csv --accept {self.hashes[name]}"
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if clock and FAKETIME:
            env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": clock}
        log = (self.place / f"{name}.log").open("ab")
        self.sites[name] = subprocess.Popen(words.split(), env=env, stdout=log, stderr=log, start_new_session=True)

    def start_serve(self) -> None:
        words = [self.vitrail, "serve", str(self.place / "study.toml")]
        words += ["--deadline", str(DEADLINE), "--quorum", str(QUORUM)]
        log = (self.place / "serve.log").open("ab")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.serve = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)

    def of_site(self, name: str) -> list[int]:
        return children_of(self.kits[name].folder / "flare")

    def of_coordinator(self) -> list[int]:
        return children_of(self.folder / "flare" / "coordinator")

    def run(self) -> Path | None:
        found = sorted((self.folder / "runs").iterdir()) if (self.folder / "runs").exists() else []
        return found[-1] if found else None

    def done(self) -> tuple[int, bool]:
        """Rounds so far, and whether the study is finished."""
        run = self.run()
        if run is None:
            return 0, False
        with contextlib.suppress(OSError, ValueError):
            if json.loads((run / "run.json").read_text()).get("finished"):
                return 10**9, True
            at = json.loads((run / "checkpoint.json").read_text())
            return at["stage"] * 10**6 + at["round"], False
        return 0, False

    def close(self) -> None:
        kill([p.pid for p in [*self.sites.values(), *([self.serve] if self.serve else [])]])
        for name in self.names:
            kill(self.of_site(name))
        kill(self.of_coordinator())
        for name in self.names:
            sh(f"umount -l {self.place / name}.home", check=False)
        self.unplug()

    def unplug(self) -> None:
        for i in range(len(self.names)):
            sh(f"ip link del vtc{i}", check=False)
            sh(f"ip netns del vt{i}", check=False)
        sh("ip link del vtbr", check=False)


def kill(pids: list[int], how: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def jobs(pids: list[int]) -> list[int]:
    """FLARE's job processes among these."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"worker_process" in text or b"runner_process" in text:
                found.append(pid)
    return found


def kill_site(world: World, luck: random.Random) -> str:
    name = luck.choice(world.names)
    kill([world.sites[name].pid, *world.of_site(name)])
    time.sleep(luck.uniform(0, 6))
    world.start_site(name)
    return f"{name} killed and started again"


def kill_site_transport(world: World, luck: random.Random) -> str:
    name = luck.choice(world.names)
    pids = world.of_site(name)
    kill([p for p in pids if p not in jobs(pids)])
    return f"FLARE's process at {name} killed"


def kill_site_job(world: World, luck: random.Random) -> str:
    name = luck.choice(world.names)
    kill(jobs(world.of_site(name)))
    return f"FLARE's job at {name} killed"


def kill_coordinator(world: World, luck: random.Random) -> str:
    assert world.serve is not None
    kill([world.serve.pid, *world.of_coordinator()])
    time.sleep(luck.uniform(0, 6))
    world.start_serve()
    return "the coordinator killed and started again"


def kill_serve_only(world: World, luck: random.Random) -> str:
    assert world.serve is not None
    kill([world.serve.pid])
    time.sleep(luck.uniform(0, 3))
    world.start_serve()
    return "vitrail serve killed, FLARE's processes left to themselves, and started again"


def kill_coordinator_transport(world: World, luck: random.Random) -> str:
    pids = world.of_coordinator()
    kill([p for p in pids if p not in jobs(pids)])
    return "FLARE's process at the coordinator killed"


def kill_coordinator_job(world: World, luck: random.Random) -> str:
    kill(jobs(world.of_coordinator()))
    return "FLARE's job at the coordinator killed"


def stop_site(world: World, luck: random.Random) -> str:
    name, seconds = luck.choice(world.names), DEADLINE + luck.uniform(1, 6)
    pids = [world.sites[name].pid, *world.of_site(name)] if luck.random() < 0.5 else [world.sites[name].pid]
    kill(pids, signal.SIGSTOP)
    time.sleep(seconds)
    kill(pids, signal.SIGCONT)
    return f"{name} stopped for {seconds:.0f} s"


def cut_cable(world: World, luck: random.Random) -> str:
    i, seconds = luck.randrange(len(world.names)), luck.uniform(3, 20)
    sh(f"ip link set vtc{i} down")
    time.sleep(seconds)
    sh(f"ip link set vtc{i} up")
    return f"the cable to {world.names[i]} cut for {seconds:.0f} s"


def slow_line(world: World, luck: random.Random) -> str:
    i = luck.randrange(len(world.names))
    world.lines[i].slow = True
    if NFT:
        for hook in ("input", "output"):
            sh(f"ip netns exec vt{i} nft add table ip {hook}")
            sh(f"ip netns exec vt{i} nft add chain ip {hook} c {{ type filter hook {hook} priority 0 ; }}")
            sh(f"ip netns exec vt{i} nft add rule ip {hook} c numgen random mod 100 < 2 drop")
    time.sleep(15)
    world.lines[i].slow = False
    if NFT:
        sh(f"ip netns exec vt{i} nft flush ruleset")
    return f"200 ms and 2 % of the packets {'lost' if NFT else 'sent later'} on the line to {world.names[i]} for 15 s"


def fill_disk(world: World, luck: random.Random) -> str:
    name = luck.choice(world.names)
    big = world.place / f"{name}.home" / "big"
    with contextlib.suppress(OSError), big.open("wb") as file:
        while True:
            file.write(b"0" * (1 << 20))
            file.flush()
    time.sleep(luck.uniform(4, 10))
    big.unlink()
    return f"the disk of {name} full for some seconds"


def wrong_clock(world: World, luck: random.Random) -> str:
    name = luck.choice(world.names)
    kill([world.sites[name].pid, *world.of_site(name)])
    world.start_site(name, "+1d")
    time.sleep(20)
    kill([world.sites[name].pid, *world.of_site(name)])
    world.start_site(name)
    return f"{name} with its clock a day ahead for 20 s"


KINDS: list[Callable[[World, random.Random], str]] = [
    kill_site, kill_site_transport, kill_site_job, kill_coordinator, kill_serve_only, kill_coordinator_transport,
    kill_coordinator_job, stop_site, cut_cable, slow_line, fill_disk, *([wrong_clock] if FAKETIME else []),
]  # fmt: skip


SUMS = [lambda w, luck, f=f: f(w, luck, kill) for f in (between_legs, damage_site, damage_coordinator)]
for _kind, _name in zip(SUMS, ("between_legs", "damage_site", "damage_coordinator"), strict=True):
    _kind.__name__ = _name


def noise(study: vt.Study, tables: dict, seeds: int) -> dict[str, tuple[float, float, float]]:
    """Each site's balanced accuracy undisturbed: with the study's own seed, and mean and SD over other seeds."""
    found: dict[str, list[float]] = {}
    for seed in (study.seeds[0], *range(1001, 1001 + seeds)):
        scores = vt.federate(study, tables, seed=seed).scores()
        for row in scores[scores.metric == study.metrics[0]].itertuples():
            found.setdefault(str(row.site), []).append(float(row.value))
    return {k: (v[0], float(np.mean(v[1:])), float(np.std(v[1:], ddof=1))) for k, v in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=450)
    parser.add_argument("--minutes", type=float, default=40, help="no fault after so long; the study then ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--masked", action="store_true", help="reports leave under masks, and sums have faults too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    name = "faults_masked.md" if args.masked else "faults.md"
    args.out = args.out or Path(__file__).parent / "results" / name
    kinds = KINDS + (SUMS if args.masked else [])
    luck, began, lines = random.Random(args.seed), time.time(), []
    place = Path(tempfile.mkdtemp(prefix="vitrail-faults-"))
    world, stuck = World(place, args.rounds, args.masked), ""
    try:
        for name in world.names:
            world.start_site(name)
        world.start_serve()
        counts: Counter[str] = Counter()
        order = [k for _ in range(-(-args.faults // len(kinds))) for k in luck.sample(kinds, len(kinds))]
        goes_on(world, 0)
        for number, kind in enumerate(order[: args.faults], 1):
            at, finished = world.done()
            if finished or time.time() - began > 60 * args.minutes:
                break
            what = kind(world, luck)
            counts[kind.__name__] += 1
            seconds = goes_on(world, at)
            lines.append(f"{number}. round {at % 10**6}: {what}; went on after {seconds:.0f} s")
            print(lines[-1], flush=True)
            if seconds >= PATIENCE:
                stuck = what
                break
            time.sleep(luck.uniform(0, 2))
        while not stuck and not world.done()[1] and time.time() - began < 3600:
            time.sleep(1)
        if world.serve is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                world.serve.wait(60)
        report(world, counts, lines, stuck, time.time() - began, args)
    finally:
        world.close()
        print(f"logs: {place}")


def goes_on(world: World, before: int) -> float:
    """Seconds until two more rounds are done."""
    began = time.time()
    while time.time() - began < PATIENCE:
        now, finished = world.done()
        if finished or now >= before + 2:
            break
        time.sleep(0.2)
    return time.time() - began


def report(world: World, counts: Counter[str], lines: list[str], stuck: str, seconds: float, args) -> None:
    run = world.run()
    assert run is not None
    finished, under = world.done()[1], " under masks" if args.masked else ""
    text = [f"# Faults in one long study, {time.strftime('%Y-%m-%d')}", ""]
    text += [f"{sum(counts.values())} faults ({', '.join(f'{k} {v}' for k, v in sorted(counts.items()))}), seed "]
    text[-1] += (
        f"{args.seed}; {args.rounds} rounds of {world.study.build_method().catalogue.title}{under}, four sites, "
        f"quorum {QUORUM}, deadline {DEADLINE:.0f} s; "
    )
    text[-1] += f"{seconds / 60:.0f} minutes on {len(os.sched_getaffinity(0))} cores."
    text[-1] += "" if FAKETIME else " No libfaketime on this machine: the wrong clock was not tried."
    text += ["", f"- The study ended: {'yes' if finished else f'NO, it stood still after: {stuck}'}."]
    if finished:
        result = vt.Run.load(run)
        key = ["stage", "round", "site", "split", "metric"]
        twice = int(result.history.duplicated(key).sum())
        rounds = [json.loads(x) for x in (run / "events.jsonl").read_text().splitlines()]
        kept = [(e["stage"], e["round"]) for e in rounds if e["event"] == "checkpoint"]
        again = len(kept) - len(set(kept))
        text += [f"- Rounds counted twice: {again} kept twice, {twice} scores given twice."]
        models = sum(len(list((world.place / f"{n}.home").glob("*/model.safetensors"))) == 1 for n in world.names)
        text += [f"- Sites that ended with their own model: {models} of {len(world.names)}."]
        missing = int(
            result.ledger[result.ledger.stage == "train"].groupby("site").messages.min().rsub(args.rounds).sum()
        )
        text += [f"- Rounds that a site missed, over all sites: {missing} of {len(world.names) * args.rounds}."]
        if args.masked:
            reports, twice, opened = told_twice(world)
            lost = Counter(e["round"] for e in rounds if e["event"] == "sum not opened")
            text += [f"- Reports under masks that left sites: for {reports} sums; of one sum in two ways: {twice}."]
            text += [f"- Sums whose shares a site told in two ways: {opened}."]
            text += [f"- Sums that stayed closed, each a round that changed nothing: {len(lost)} of {args.rounds}."]
        usual, mine = noise(world.study, world.tables, 8), result.scores().query("metric == @world.study.metrics[0]")
        text += ["", f"| site | {world.study.metrics[0]} | the same seed undisturbed | difference | within 2 SD |"]
        text[-1] += " 8 seeds undisturbed, mean | SD |"
        text += ["| --- | ---: | ---: | ---: | --- | ---: | ---: |"]
        for row in mine.itertuples():
            same, mean, sd = usual[str(row.site)]
            by = row.value - same
            text += [
                f"| {row.site} | {row.value:.3f} | {same:.3f} | {by:+.3f} | {'yes' if abs(by) <= 2 * sd else 'no'} |"
            ]
            text[-1] += f" {mean:.3f} | {sd:.3f} |"
    text += ["", "## What happened", "", *lines]
    args.out.write_text("\n".join(text) + "\n")
    print("\n".join(text[:16]))


if __name__ == "__main__":
    main()
