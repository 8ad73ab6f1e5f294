"""A box for processes of strangers: Landlock, by which Linux lets a process and its children give up rights for good.

A process in the box reads and executes what `read` names, reads and writes what `write` names, dials and listens on
the named ports only (kernels from 6.7 on), sends no signal out of the box and dials no abstract socket outside it
(from 6.12 on). What Landlock does not cover: sockets that are files, UDP, and who is root outside the file system.

This file needs nothing but Python. It is run as a script between `keeper` and FLARE: it closes the box around itself
and then becomes the command that follows.
"""

from __future__ import annotations

import ctypes
import json
import os
import site
import stat
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, by the same numbers on all machines
VERSION = 1  # flag: tell the version of the interface
PATH_BENEATH, NET_PORT = 1, 2  # kinds of rules
NO_NEW_PRIVILEGES = 38  # of prctl
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1, 2, 4, 8, 1 << 14
NEVER_MADE = EXECUTE | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 12  # in a writable folder: programs, devices, FIFOs, links
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15  # those that a single file can have
BIND, CONNECT = 1, 2
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
SETTINGS = (  # what Python, TLS and looking up a name read
    "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
    "/etc/localtime", "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf",
    "/etc/passwd", "/etc/mime.types",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
KERNEL = ("/proc/stat", "/sys/devices/system/cpu")  # how many processors there are


class Sandbox(NamedTuple):
    """What a process in it may do; a path that does not exist is left out."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    connect: tuple[int, ...] = ()  # TCP ports, on any machine
    bind: tuple[int, ...] = ()


def abi() -> int:
    """The version of Landlock's interface here; 0 where the kernel has none or it is switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(CREATE_RULESET, None, 0, VERSION)))


def python_places(workspace: Path) -> tuple[str, ...]:
    """What Python and its packages are read from. Not this process's own path, which may begin with the folder that
    `vitrail` was started in; and no folder that the workspace lies in, which may hold a site's rows."""
    own = [sys.executable, os.path.realpath(sys.executable)]
    own += [str(Path(prefix) / name) for prefix in (sys.prefix, sys.base_prefix) for name in ("pyvenv.cfg", "lib")]
    own += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).resolve().parents[3])]
    own += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    around = {str(folder) for folder in workspace.resolve().parents}
    packages = [place for place in own if os.path.isabs(place) and os.path.realpath(place) not in around]
    return (*packages, *SYSTEM, *SETTINGS, *KERNEL)


def command(box: Sandbox, words: Sequence[str]) -> list[str]:
    """The same command, in the box."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), json.dumps(box), *words]


# what runs in the process that shuts itself in


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Port(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


def close(box: Sandbox) -> None:
    """Around this thread and whatever it begins, for good. Raises where the kernel refuses."""
    version = abi()
    if not version:
        raise OSError("this kernel has no Landlock")
    everything = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    asked = _Ruleset(everything, BIND | CONNECT if version >= 4 else 0, 3 if version >= 6 else 0)
    rules = _call(CREATE_RULESET, ctypes.byref(asked), 8 if version < 4 else 16 if version < 6 else 24, 0)
    readable, writable = EXECUTE | READ_FILE | READ_DIR, everything & ~NEVER_MADE
    for place, rights in [*((p, readable) for p in box.read), *((p, writable) for p in (*box.write, *DEVICES))]:
        _allow(rules, place, rights)
    if version >= 4:
        for ports, right in ((box.bind, BIND), (box.connect, CONNECT)):
            for port in ports:
                _call(ADD_RULE, rules, NET_PORT, ctypes.byref(_Port(right, port)), 0)
    zero = ctypes.c_ulong(0)
    ctypes.CDLL(None, use_errno=True).prctl(NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero)
    _call(RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, place: str, rights: int) -> None:
    try:
        at = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(at).st_mode):
            rights &= FILE_RIGHTS
        _call(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(_Beneath(rights, at)), 0)
    finally:
        os.close(at)


def _call(number: int, *words: object) -> int:
    answer = int(ctypes.CDLL(None, use_errno=True).syscall(number, *words))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


if __name__ == "__main__":
    box_, *words_ = sys.argv[1:]
    try:
        close(Sandbox(*json.loads(box_)))
    except OSError as error_:
        sys.exit(f"the sandbox for {words_[0]} could not be set up: {error_}")
    os.execvp(words_[0], words_)
