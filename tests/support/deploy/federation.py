"""A study between real processes on this machine: `vitrail serve`, a `vitrail join` for each site, and FLARE's; and
the same without any of them, by bytes in one process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from typer.testing import CliRunner

from tests.support.deploy.forked import Forked
from tests.support.stripes import write_folders
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.encoding import finish_moments, moments, numeric
from vitrail.deploy.consent.form import site_form
from vitrail.deploy.coordinator.requests import Responses
from vitrail.deploy.identity import enrolment as enrol
from vitrail.deploy.identity.coordinator_folder import approval_of, folder_of, invitation_of
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.deploy.transport import supervisor
from vitrail.deploy.transport.flare import workspace
from vitrail.deploy.vertical.agreement import agreed_hash
from vitrail.runs.result import Run
from vitrail.study.model import Study

PATIENCE = 90.0  # seconds that anything may take before a test gives up: a loaded machine is slow, not wrong


class Federation:
    """The coordinator's folder is ROOT/c, a site's is ROOT/SITE. `close` ends every process that works in ROOT."""

    def __init__(self, root: Path, study: Study, tables: Mapping[str, pd.DataFrame]) -> None:
        self.root, self.study, self.sites = root.resolve(), self._write(root, study), list(tables)
        self.pictures, self.forked = study.images is not None, list[Forked]()
        self.ahead = dict[str, Path]()  # log's name -> a folder that its process finds first when it imports
        for name, table in tables.items():
            (root / name).mkdir()
            if self.pictures:
                write_folders(root / name, {"pictures": table})
            else:
                table.to_csv(self.data(name), index=False)

    @staticmethod
    def _write(root: Path, study: Study) -> Path:
        (root / "c").mkdir(parents=True)
        file = root.resolve() / "c" / "study.toml"
        file.write_text(study.to_toml())
        return file

    @property
    def folder(self) -> Path:
        return folder_of(self.study)

    @property
    def who(self) -> enrol.Coordinator:
        return enrol.load_coordinator(self.folder)

    def data(self, site: str) -> Path:
        return self.root / site / ("pictures" if self.pictures else f"{site}.csv")

    def kit(self, site: str) -> Path:
        return self.root / site / f"{site}.kit"

    def secrets(self, run: str) -> dict[str, str]:
        """From what the sites drew in it."""
        return {site: draws_of(self.home(site), run) for site in self.sites}

    def home(self, site: str) -> Path:
        return self.root / site / f"{site}.home"

    @property
    def hash(self) -> str:
        """Of the agreement, which every form names."""
        return agreed_hash(self.who.study, self.who.seed, self.who.roster)

    def accepted(self, site: str, *words: object) -> str:
        """The hash of the form that this site accepts when it joins with these words."""
        who = self.who
        agreement = Agreement.of(who.study, who.seed, who.roster)
        return site_form(agreement, site, list(who.roster), "--no-publish" not in words, "--show-verdict" in words).hash

    def log(self, name: str) -> Path:
        return self.root / f"{name}.log"

    def enrol(self) -> None:
        """Invitation, request and approval; files go by mail, which is a copy here. The first site's by command, the
        others' by the functions behind it, which are faster."""
        named = [word for site in self.sites for word in ("--site", site)]
        self.do("invite", self.study, *named, "--address", f"127.0.0.1:{free_port()}")
        for site in self.sites:
            invitation = Path(shutil.copy(invitation_of(self.folder, site), self.root / site))
            asked = self.root / site / f"{site}.request"
            if site == self.sites[0]:
                self.do("request", invitation)
                self.do("approve", asked, "--study", self.study, "--yes")
            else:
                enrol.request(invitation)
                enrol.approve(self.folder, asked)
        for site in self.sites:  # when all are approved, each is sent the list of all
            shutil.copy(approval_of(self.folder, site), self.root / site)

    def do(self, *words: object) -> str:
        """A command that ends by itself, and well; in this process, since starting one takes seconds."""
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, f"vitrail {words}: {done.output}{done.exception}"
        return done.output

    def serve(self, *words: object) -> subprocess.Popen[bytes]:
        return self.start("serve", "serve", self.study, "--deadline", 60, *words)

    def serve_without(self, defence: str, *words: object) -> subprocess.Popen[bytes]:
        """A control: the same without one of its defences."""
        script = Path(__file__).with_name("weak_coordinator.py")
        return self.run(f"without {defence}", script, defence, "serve", self.study, *words)

    def run(self, log: str, script: Path, *words: object) -> subprocess.Popen[bytes]:
        """One of our commands, changed by a script."""
        return self.begin(log, supervisor.tied([sys.executable, str(script), *map(str, words)]))

    def begin(self, log: str, line: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        env = self.env if env is None else env
        with self.log(log).open("ab") as out:
            return subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    def join(self, site: str, kit: Path | None = None, name: str = "", words: tuple[object, ...] = ()) -> Forked:
        """A site's process; the first time with its approval."""
        kit = kit or self.kit(site)
        first = [] if (kit / "certificate.pem").exists() else ["--approval", self.root / site / f"{site}.approval"]
        accept = ["--accept", self.accepted(site, *words)]
        return self.fork(name or site, "join", kit, "--data", self.data(site), *accept, *first, *words)

    def fork(self, log: str, *words: object) -> Forked:
        self.forked.append(Forked(words, self.log(log), self.env_of(log)))
        return self.forked[-1]

    def start(self, log: str, *words: object) -> subprocess.Popen[bytes]:
        return self.begin(log, command(words), self.env_of(log))

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.root), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def env_of(self, log: str) -> dict[str, str]:
        places = [str(self.ahead[log])] if log in self.ahead else []
        places += [place for place in [os.environ.get("PYTHONPATH")] if place]
        return {**self.env, "PYTHONPATH": os.pathsep.join(places)} if places else self.env

    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").iterdir())  # named by time

    def events(self, run: Path | None = None) -> list[dict[str, Any]]:
        """Of the newest run, or of this one."""
        with contextlib.suppress(OSError, IndexError):
            text = ((run or self.runs()[-1]) / "events.jsonl").read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    def wait(self, what: str, found: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """What `found` finds; within so many seconds, or the logs are shown."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.process_time()
            if got := found():
                return got
            time.sleep(0.05 + 10 * (time.process_time() - began))  # what is dear to look for is looked for less often
        raise AssertionError(f"within {seconds:.0f} seconds: {what}\n{self.logs()}")

    def wait_end(self, process: subprocess.Popen[bytes] | Forked, what: str, seconds: float = PATIENCE) -> None:
        self.wait(f"{what} ends", lambda: process.poll() is not None, seconds)
        assert process.returncode == 0, f"{what} ended with {process.returncode}\n{self.logs()}"

    def wait_event(self, event: str, seconds: float = PATIENCE, **told: Any) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            fits = (e for e in self.events() if e["event"] == event and told.items() <= e.items())
            return next(fits, None)

        return self.wait(f"event {event} {told}", found, seconds)

    def logs(self, lines: int = 25) -> str:
        """The last lines of everything that was written, for whoever reads a failed test."""
        places = [*sorted(self.root.glob("*.log")), *self.root.glob("c/*/runs/*/events.jsonl")]
        places += [*self.root.glob("c/*/flare/coordinator/console.txt"), *self.root.glob("*/*.kit/flare/console.txt")]
        shown = []
        for place in places:
            end = place.read_text(errors="replace").splitlines()[-lines:]
            shown.append(f"--- {place.relative_to(self.root)}\n" + "\n".join(line[:300] for line in end))
        return "\n".join(shown)

    def processes(self, folder: Path | None = None) -> dict[int, str]:
        """Whatever has this folder on its command line, and that line: ours and FLARE's."""
        place, found = f"{folder or self.root}/".encode(), dict[int, str]()
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes()
                if place in words.replace(b"\0", b"/\0") and int(entry.parent.name) != os.getpid():
                    found[int(entry.parent.name)] = words.replace(b"\0", b" ").decode()
        ours = [one for one in self.forked if one.poll() is None]
        return found | {one.pid: " ".join(one.words) for one in ours if place.decode() in "/ ".join([*one.words, ""])}

    def kill(self, folder: Path | None = None) -> None:
        """kill -9, until nothing is left there."""
        for _ in range(50):
            for pid in (left := self.processes(folder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return
            time.sleep(0.05)

    def close(self) -> None:
        self.kill()


def command(words: tuple[object, ...]) -> list[str]:
    """It ends with the tests, also when they are killed."""
    return supervisor.tied([sys.executable, "-m", "vitrail.cli", *map(str, words)])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def knock(federation: Federation, kit: Path) -> bytes:
    """The first bytes that the coordinator says to whoever shows this kit's certificate; none if it hangs up."""
    context = ssl.create_default_context(cafile=str(federation.folder / "authority" / "cert.pem"))
    context.load_cert_chain(kit / "certificate.pem", kit / "key.pem")
    context.set_alpn_protocols(["h2"])
    who = federation.who
    with (
        socket.create_connection((who.host, who.port), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname=who.host) as line,
        contextlib.suppress(ssl.SSLError, ConnectionError),
    ):
        return line.recv(9)
    return b""


class Hostile:
    """Whoever holds the coordinator's folder, and asks for what it likes."""

    def __init__(self, federation: Federation) -> None:
        from vitrail.deploy.transport.flare.transport import FlareTransport

        workspace.build_coordinator(federation.folder)
        local = federation.folder / "flare" / "coordinator" / "local"
        rights = json.loads((local / "authorization.json").read_text())  # its own policy would still refuse
        rights["permissions"]["lead"] = "any"
        (local / "authorization.json").write_text(json.dumps(rights))
        self.federation, self.events = federation, list[tuple[str, dict[str, Any]]]()
        self.way = FlareTransport(federation.who, lambda event, **told: self.events.append((event, told)))

    def wait(self, what: str, found: Callable[[], Any]) -> Any:
        def look() -> Any:
            self.way.watch(0.1)
            return found()

        return self.federation.wait(what, look)

    def wait_event(self, event: str, site: str) -> dict[str, Any]:
        return self.wait(event, lambda: next((t for e, t in self.events if e == event and t.get("site") == site), None))


def drawn(homes: Path, names: Iterable[str], run: str) -> dict[str, str]:
    """From what each site drew in that run, so that a simulation draws the same; homes lie in one folder, by name."""
    return {name: draws_of(homes / name, run) for name in names}


def without_scores(run: Run) -> pd.DataFrame:
    """What crossed, but for scores: between machines they are told less often."""
    ledger = run.ledger[~run.ledger.stage.str.startswith("scores")]
    return ledger.reset_index(drop=True)


def first_word(agreed: Agreement) -> dict[str, Tensor]:
    """What an honest coordinator tells a site in the first round."""
    return {k: v[0] for k, v in flatten(agreed.stages[0].turns[0].down)}


def prepare_question(site: Site, run: str) -> Message:
    """What an honest coordinator asks before the first round; a common scale is here that of the site's own rows."""
    if not site.agreed.shared_scale:
        return Message("prepare", {"run": run})
    names = numeric(site.agreed.study)
    mean, sd = finish_moments(lambda mean: [moments(site.rows, names, mean)])
    return Message("prepare", {"run": run}, {"mean": torch.from_numpy(mean), "sd": torch.from_numpy(sd)})


class Here:
    """A way to sites in this process; every message is bytes on its way. `events`: what was logged."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.events = sites, list[tuple[str, dict[str, Any]]]()

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        answers, trouble = {}, {}
        for name, question in questions.items():
            try:
                said = self.sites[name].answer(unpack(question.pack())).pack()
                self.left(name, said)
                answers[name] = unpack(said)
            except VitrailError as error:
                trouble[name] = str(error)
        return Responses(answers, trouble)

    def left(self, site: str, data: bytes) -> None:
        """What a site answers, before it is read."""

    def present(self) -> set[str]:
        return set(self.sites)

    def log(self, event: str, **details: Any) -> None:
        self.events.append((event, details))
