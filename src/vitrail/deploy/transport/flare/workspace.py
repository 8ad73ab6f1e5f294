"""FLARE's own files for the coordinator, its lead and a site, written from what enrolment made. No FLARE is needed.

A site's three policies are the site's: no code from outside, no class but our relay, our filter on every answer, no
shell, no log that leaves. They are written anew before each start, so nothing that lay there counts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.certificates import COORDINATOR, project
from vitrail.deploy.identity.enrolment import LEAD, check_certificate, load_coordinator, load_kit
from vitrail.deploy.transport.ipc import MEMBERS, SCHEME
from vitrail.storage.atomic_files import private_folder, write_atomically

ADAPTER, PROCESS = "vitrail.deploy.transport.flare.components", "vitrail.deploy.transport.flare.process"
FLARE = "nvflare.app_common"
WAIT = 10.0  # seconds for an answer to a sign of life, which is lost with a coordinator that dies; FLARE would wait 30
KEYS = {"ssl_private_key": "client.key", "ssl_cert": "client.crt", "ssl_root_cert": "rootCA.pem"}


def build_coordinator(folder: Path) -> None:
    """FLARE's workspaces of the coordinator and of the lead, who submits its jobs."""
    who = load_coordinator(folder)
    flare, store = who.folder.absolute() / "flare", who.folder.absolute() / "flare" / "store"
    name, root = project(who.authority_fingerprint), (who.folder / "authority" / "cert.pem").read_text()
    keys = {k: (who.folder / "keys" / k).read_text() for k in
            ("coordinator.key", "coordinator.crt", "lead.key", "lead.crt")}  # fmt: skip
    for place in ("jobs", "snapshots"):
        private_folder(store / place)
    private_folder(store)
    private_folder(flare)
    server = {
        "name": name,
        "service": {"target": who.address, "scheme": "grpc"},
        "admin_server": who.host,
        "admin_port": who.port,
        "ssl_private_key": "server.key",
        "ssl_cert": "server.crt",
        "ssl_root_cert": "rootCA.pem",
        "connection_security": "mtls",
    }
    most = 8 + 2 * len(who.sites)  # a site may be in a job of its own, and the one before may still be ending
    components = [
        _component("job_scheduler", f"{FLARE}.job_schedulers.job_scheduler.DefaultJobScheduler", max_jobs=most),
        _component(
            "job_manager",
            "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
            uri_root=str(store / "jobs"),
            job_store_id="job_store",
        ),
        _component("job_store", f"{FLARE}.storages.filesystem_storage.FilesystemStorage"),
        _component("process_launcher", f"{PROCESS}.CoordinatorLauncher"),
        _component(
            "doorkeeper", "vitrail.deploy.transport.flare.admission.Doorkeeper", folder=str(flare / "coordinator")
        ),
    ]
    storage = {
        "path": f"{FLARE}.storages.filesystem_storage.FilesystemStorage",
        "args": {"root_dir": str(store / "snapshots"), "uri_root": "/"},
    }
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [f"{ADAPTER}.Relay"],
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 1000, "heart_beat_timeout": 60, "admin_timeout": 10.0}
        ],
        "snapshot_persistor": {
            "path": f"{FLARE}.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {"uri_root": "/", "storage": storage},
        },
        "components": components,
    }
    startup = {
        "fed_server.json": {"format_version": 2, "require_signed_jobs": True, "servers": [server]},
        "rootCA.pem": root,
        "server.crt": keys["coordinator.crt"],
        "server.key": keys["coordinator.key"],
    }
    local = {
        "resources.json": resources,
        "authorization.json": _permissions(operate="any"),  # to shut a site out while it is connected
        "log_config.json": LOGS,
    }
    line, drivers = _private_line(flare / "coordinator")
    _write(flare / "coordinator", startup=startup, local={**local, "comm_config.json": line}, drivers=drivers)
    removed = sorted(site["identity"] for site in who.sites.values() if site["removed"])
    write_atomically(
        flare / "coordinator" / "disabled_clients.json", json.dumps({"disabled_clients": removed}), private=True
    )
    write_members(who.folder, who.sites)

    admin = {
        "project_name": name,
        "username": LEAD,
        "server_identity": COORDINATOR,
        "scheme": "grpc",
        "host": "localhost",  # on the same machine
        "port": who.port,
        "connection_security": "mtls",
        "uid_source": "user_input",
        "with_file_transfer": True,
        "upload_dir": "transfer",
        "download_dir": "transfer",
        "client_key": "client.key",
        "client_cert": "client.crt",
        "ca_cert": "rootCA.pem",
    }
    startup = {
        "fed_admin.json": {"format_version": 1, "admin": admin},
        "rootCA.pem": root,
        "client.crt": keys["lead.crt"],
        "client.key": keys["lead.key"],
    }
    waits = {"idle_timeout": 900.0, "login_timeout": 10.0, "with_debug": False, "authenticate_msg_timeout": 2.0}
    resources = {"format_version": 1, "admin": {**waits, "prompt": "> "}}
    _write(flare / "lead", startup=startup, local={"resources.json": resources})
    private_folder(flare / "lead" / "transfer")


def write_members(folder: Path, sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Who may come in, where FLARE's process can read it: it cannot read the coordinator's own folder."""
    listed = {site["identity"]: {k: site[k] for k in ("approved", "removed")} for site in sites.values()}
    write_atomically(folder / "flare" / "coordinator" / MEMBERS, json.dumps(listed), private=True)


def build_site(kit: Path) -> None:
    """FLARE's workspace of a site, with the site's own policies."""
    own = load_kit(kit)
    if not own.approved:
        hint = "Send the request to the coordinator, and join with the approval that comes back."
        raise VitrailError("the kit is not approved yet", [Problem(str(own.folder), "it has no certificate.", hint)])
    signed = (own.folder / "certificate.pem").read_text()
    check_certificate(own, signed, own.folder / "certificate.pem", "the coordinator would not admit this kit")
    server = {
        "name": project(own.authority_fingerprint),
        "service": {"target": own.address, "scheme": "grpc"},
        "identity": COORDINATOR,
    }
    startup = {
        "fed_client.json": {
            "format_version": 2,
            "require_signed_jobs": True,
            "servers": [server],
            "client": {**KEYS, "fqsn": own.identity, "is_leaf": True, "connection_security": "mtls"},
        },
        "rootCA.pem": own.invitation["authority"],
        "client.crt": signed,
        "client.key": (own.folder / "key.pem").read_text(),
    }
    gpus = {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300}
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [f"{ADAPTER}.SiteRelay"],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "maint_msg_timeout": WAIT},
        "components": [
            _component(
                "resource_manager", f"{FLARE}.resource_managers.gpu_resource_manager.GPUResourceManager", **gpus
            ),
            _component("resource_consumer", f"{FLARE}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"),
            _component("process_launcher", f"{PROCESS}.SiteLauncher"),
            _component("doorbell", f"{ADAPTER}.Doorbell"),
        ],
    }
    scope = {
        "name": "study",
        "properties": {},
        "task_data_filters": [],
        "task_result_filters": [{"path": f"{ADAPTER}.Outgoing", "args": {}}],
    }
    local = {
        "resources.json": resources,
        "authorization.json": _permissions(operate="none"),
        "privacy.json": {"scopes": [scope], "default_scope": "study"},
        "log_config.json": LOGS,
    }
    line, drivers = _private_line(own.folder.absolute() / "flare")
    _write(own.folder / "flare", startup=startup, local={**local, "comm_config.json": line}, drivers=drivers)


def _private_line(workspace: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What FLARE reads of its lines, and the folder in which it looks for our driver: between themselves its processes
    listen where only their user can dial, not on a port."""
    inner = {"scheme": SCHEME, "resources": {"connection_security": "clear"}}
    resources = {"internal": inner, "allow_adhoc_conns": False, "comm_driver_path": str(workspace / "drivers")}
    driver = f"from {ADAPTER} import PrivateLine  # noqa: F401\n"
    return resources, {"vitrail_line.py": driver}


def _permissions(operate: str) -> dict[str, Any]:
    """Only the lead may anything, and no one may send code or open a shell."""
    lead = {"submit_job": "any", "manage_job": "n:submitter", "view": "any", "operate": operate}
    never = ("byoc", "shell_commands", "clone_job", "download_job", "server-predeployed-flwr")
    return {"format_version": "1.0", "permissions": {"lead": {**lead, **dict.fromkeys(never, "none")}}}


def _component(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


def _write(workspace: Path, **folders: dict[str, Any]) -> None:
    """Each folder anew, by FLARE's name for it; what else lies in the workspace is FLARE's."""
    private_folder(workspace)
    for name, files in folders.items():
        folder = workspace / name
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        private_folder(folder)
        for file, content in files.items():
            write_atomically(
                folder / file,
                content if isinstance(content, str) else json.dumps(content, indent=1) + "\n",
                private=True,
            )


_LINE = "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s"
_TURN = {"class": "logging.handlers.RotatingFileHandler", "formatter": "baseFormatter", "mode": "a"}
LOGS = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"baseFormatter": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": _LINE}},
    "handlers": {
        "consoleHandler": {
            "class": "logging.StreamHandler",
            "level": "WARNING",
            "formatter": "baseFormatter",
            "stream": "ext://sys.stdout",
        },
        "logFileHandler": {
            **_TURN, "level": "INFO", "filename": "log.txt", "maxBytes": 5 * 2**20, "backupCount": 2,
        },
        "errorFileHandler": {
            **_TURN, "level": "ERROR", "filename": "error_log.txt", "maxBytes": 5 * 2**20, "backupCount": 2,
        },
    },
    "loggers": {"root": {"level": "INFO", "handlers": ["consoleHandler", "logFileHandler", "errorFileHandler"]}},
}  # fmt: skip
