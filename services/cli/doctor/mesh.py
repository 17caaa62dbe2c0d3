"""The doctor's checks of the mesh itself: ports, sockets left behind, keys, processes that don't answer.

It uses the health servers and sockets, and doesn't join the mesh.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import socket
import ssl
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.hosts import client_host, http_url
from services.api.own_door import own_context
from services.api.settings import ROLES, Settings, endpoint, instance_name, mesh_metrics_port, run_dir, sockets_in
from services.cli.doctor.finding import Finding, bad, ok, warn

if TYPE_CHECKING:
    from mesh.security import FolderSecurity

ASK_TIMEOUT = 2.0
HANDSHAKE_TIMEOUT = 2.0
SILENT = "takes the connection and says nothing"


# Ports --------------------------------------------------------------------------------------------------


def ports(settings: Settings) -> list[Finding]:
    """Free, or taken by a mesh of ours."""
    doors = [("--port", settings.host, settings.port)]
    doors += [("--metrics-port", settings.metrics_host, mesh_metrics_port(settings, role)) for role in ROLES]
    findings = []
    for flag, host, port in dict.fromkeys(doors):
        problem = bind_problem(host, port)
        if problem == "taken":
            findings.append(_holder(flag, host, port, own_context(settings) if flag == "--port" else None))
        elif problem:
            what = f"{host}:{port} cannot be listened on: {problem}"
            address = flag.replace("port", "host")
            fix = f"{address} 127.0.0.1 for this machine alone, {address} 0.0.0.0 for all of its addresses"
            findings.append(bad("ports", what, f"{fix}; or another {flag}"))
    free = len(doors) - len(findings)
    return findings + ([ok("ports", f"{free} ports are free")] if free else [])


def _holder(flag: str, host: str, port: int, tls: ssl.SSLContext | None) -> Finding:
    """What listens on the port: a process of ours, another program, or a stuck process."""
    fix = f"stop what listens there (ss -ltnp 'sport = :{port}'), or start with {flag} {_free_port(host)}"
    answer = _readiness(host, port, tls)
    if isinstance(answer, dict):
        return ok("ports", f"{host}:{port} is served by specmesh")
    if answer == SILENT:
        return bad("ports", f"{host}:{port} is taken by a process that says nothing, ours or not", fix)
    return bad("ports", f"{host}:{port} is taken by another program", fix)


def bind_problem(host: str, port: int) -> str:
    """Empty when a server could listen there; "taken" when one does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port whose last connections are still being buried counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return "taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _readiness(host: str, port: int, tls: ssl.SSLContext | None = None) -> dict[str, Any] | str:
    """What /health/ready says, or why nothing was said."""
    url = f"{http_url(client_host(host), port, tls is not None)}/health/ready"
    try:
        try:
            # No proxy: the doctor asks this machine.
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
            )
            with opener.open(url, timeout=ASK_TIMEOUT) as answer:
                body = answer.read(1 << 16)
        except urllib.error.HTTPError as refusal:
            body = refusal.read(1 << 16)
        said = json.loads(body)
    except TimeoutError:
        return SILENT
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return SILENT
        return "does not answer"
    except (OSError, ValueError, RecursionError):
        return "answers nonsense"
    if isinstance(said, dict) and "status" in said and "roles" in said:
        # The HTTP API of a streamer has the same in more detail.
        said["ready"] = said["status"] != "unready"
    return said if isinstance(said, dict) and "ready" in said else "answers nonsense"


# Peers --------------------------------------------------------------------------------------------------


def peers(settings: Settings) -> list[Finding]:
    """Asks every role's health server. No answer at all: nothing runs; some missing: those processes died."""
    answers = {role: _readiness(settings.metrics_host, mesh_metrics_port(settings, role)) for role in ROLES}
    if all(answer == "does not answer" for answer in answers.values()):
        return [ok("peers", "no mesh is running here")]
    return [_peer(settings, role, answer) for role, answer in answers.items()]


def _peer(settings: Settings, role: str, answer: dict[str, Any] | str) -> Finding:
    where = f"{role} ({settings.metrics_host}:{mesh_metrics_port(settings, role)})"
    if isinstance(answer, str):
        fix = f"see its log; `specmesh up` starts it again by itself, `specmesh run {role}` does by hand"
        if answer == SILENT:
            fix = f"kill -CONT its process if it was stopped, else kill it; then {fix}"
        return bad("peers", f"{where} {answer}, while others do", fix)
    if answer["ready"]:
        return ok("peers", f"{where} is ready")
    reasons = answer.get("reasons") or ["it doesn't say why"]
    return warn("peers", f"{where} is not ready: {'; '.join(map(str, reasons))}", "wait, or remove the reason")


# What a run leaves behind ---------------------------------------------------------------------------------


def run_folder(settings: Settings) -> list[Finding]:
    """Ours alone, the mesh's that answers, and nothing in it of processes that are gone."""
    folder = run_dir(settings)
    if elsewhere := _mesh_elsewhere(settings, folder):
        what = f"the mesh that answers at these ports has its sockets in {' or '.join(elsewhere)}, not in {folder}"
        return [warn("run_dir", what, f"specmesh doctor --run-dir {shlex.quote(elsewhere[0])}")]
    if not folder.is_dir():
        return [ok("run_dir", f"{folder} is not there yet; a start makes it")]
    found = folder.stat()
    if found.st_uid != os.geteuid():
        what = f"{folder} belongs to user {found.st_uid}"
        return [bad("run_dir", what, "start with --run-dir and a folder of your own")]
    if stat.S_IMODE(found.st_mode) & 0o022:
        what = f"{folder} can be written by others, who could take a socket's place"
        return [bad("run_dir", what, f"chmod 700 {folder}")]
    stale = [*_stale_sockets(folder), *_stale_pids(folder)]
    if stale:
        names = " ".join(str(path) for path in stale)
        what = f"left behind by processes that are gone: {', '.join(path.name for path in stale)}"
        return [warn("run_dir", what, f"rm {names}")]
    return [ok("run_dir", f"{folder}: nothing left behind")]


def _mesh_elsewhere(settings: Settings, folder: Path) -> list[str]:
    """The run_dir of the mesh that answers, if it isn't the one of these settings; several, if several run."""
    at_work = folders_at_work()
    if not at_work or folder.absolute() in at_work:
        return []
    answers = (_readiness(settings.metrics_host, mesh_metrics_port(settings, role)) for role in ROLES)
    return list(map(str, at_work)) if any(isinstance(each, dict) for each in answers) else []


def folders_at_work(table: Path = Path("/proc/net/unix")) -> list[Path]:
    """Folders in which a directory listens, of every user."""
    try:
        lines = table.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    paths = (line.partition(" /")[2] for line in lines)
    return list(dict.fromkeys(Path("/" + path).parent for path in paths if path.endswith("/directory.sock")))


def _stale_sockets(folder: Path) -> Iterator[Path]:
    for path in sockets_in(folder):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(ASK_TIMEOUT)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                yield path
            except OSError:
                pass  # gone in the meantime, or too busy to answer: neither is stale


def _stale_pids(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("*.pid")):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.read_text("utf-8").split()[0])
            if not Path(f"/proc/{pid}").exists():
                yield path


# Keys -----------------------------------------------------------------------------------------------------


def keys(settings: Settings) -> list[Finding]:
    """Needed for every address that leaves this machine; pairs must be pairs, and secrets secret."""
    addresses = [settings.bind, settings.advertise, settings.directory]
    leaves = [address for address in addresses if address and not address.startswith(("ipc://", "inproc://"))]
    if not settings.keys_dir:
        if leaves:
            return [bad("keys", f"{leaves[0]} leaves this machine, and keys_dir is empty", "specmesh keys make")]
        return [ok("keys", "none needed: the mesh stays on this machine")]
    return _check_keys(Path(settings.keys_dir))


def _check_keys(folder: Path) -> list[Finding]:
    from mesh.errors import Insecure
    from mesh.security import MESH, load_security

    fix = f"specmesh keys make --keys-dir {folder}"
    own = [path.stem for path in sorted(folder.glob("*.secret")) if path.stem != MESH]
    if not own:
        return [bad("keys", f"no member's keys in {folder}", fix)]
    findings = []
    for name in own:
        try:
            load_security(folder, name).server()
        except Insecure as error:
            again = f"rm {folder}/{name}.* {folder}/{MESH}.* and {fix}, then bring the new *.public everywhere"
            findings.append(bad("keys", str(error), f"what the message says; or {again}"))
    return findings or [ok("keys", f"{folder}: pairs of {', '.join(own)} fit")]


def directory(settings: Settings) -> list[Finding]:
    """Of a directory on another machine: is anybody there, and do the keys fit? Only a handshake can tell."""
    address = endpoint(settings, "directory")
    if not address.startswith("tcp://") or not settings.keys_dir:
        return []
    from mesh.security import load_security

    folder = Path(settings.keys_dir)
    members = {path.stem for path in folder.glob("*.secret")}
    name = next((role for role in ROLES if role in members), instance_name(settings, "doctor"))
    match _handshake(address, load_security(folder, name)):
        case "fits":
            return [ok("directory", f"{address} answers, and the keys fit")]
        case "silent":
            what = f"nothing listens at {address}"
            return [bad("directory", what, "start it there (--host-directory), or open the firewall")]
    what = f"{address} is there, and refuses the keys of {name}"
    fix = f"copy its mesh.public and put {name}.public among its keys in {folder}, then restart it"
    return [bad("directory", what, fix)]


def _handshake(address: str, security: FolderSecurity) -> str:
    """fits, refused or silent."""
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    from mesh.transport.zmq_socket import use_keys

    with zmq.Context() as context, context.socket(zmq.DEALER) as dialler:
        dialler.linger = 0
        use_keys(dialler, security.client())
        events = dialler.get_monitor_socket()
        dialler.connect(address)
        verdict = "silent"
        # It tries again and again, and every try is an event: the time is counted over all of them.
        until = time.monotonic() + HANDSHAKE_TIMEOUT
        while (left := until - time.monotonic()) > 0 and events.poll(int(left * 1000) + 1):
            match recv_monitor_message(events)["event"]:
                case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    verdict = "fits"
                    break
                case zmq.EVENT_CONNECTED:
                    # A server that doesn't like the key says nothing: silence from here on is its refusal.
                    verdict = "refused"
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                    verdict = "refused"
                    break
        dialler.disable_monitor()
        events.close(0)
        return verdict
