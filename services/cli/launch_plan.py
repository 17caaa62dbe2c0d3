"""What `specmesh up` starts on this machine: which processes, with which settings, environment and ports.

Knows the roles and their order; knows nothing of how processes are started, watched or asked.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.api.nodes import meeting_address
from services.api.phases import DECODE, PREFILL
from services.api.settings import NO_PORT, PREFIX, Settings, key_files, mesh_metrics_port, run_dir
from services.runtime.children import Child
from services.runtime.cpu_placement import shared_cores, shared_devices
from services.runtime.environment import environment_of
from services.runtime.roles import AFTER, STAGE
from specmesh import rooms


class PortsTaken(Exception):
    """The taken ports, and what to do about each: one line each."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process to start."""

    role: str
    instance: str
    metrics_port: int
    child: Child


def processes_of(settings: Settings, directory_endpoint: str) -> list[Process]:
    """Tokenizers, proposers and workers start together; the streamers when a tokenizer can answer.

    They don't wait for the workers, whose model takes longest to load: they load at the same time, and a streamer
    says 503 with the reason until the directory knows all of them. So the order is kept by readiness, and the
    time to ready is the workers' alone.
    """
    phases = phases_of(settings)
    names = {
        "tokenizer": _numbered("tokenizer", settings.tokenizers),
        "proposer": _numbered("proposer", settings.proposers),
        "worker": tuple(phases),
        "streamer": _numbered("streamer", settings.streamers),
    }
    return [
        _process(
            settings.replaced(phase=phases[name]) if role == "worker" else settings,
            directory_endpoint, role, name, number, len(phases),
        )
        for role in names
        for number, name in enumerate(names[role])
    ]  # fmt: skip


def phases_of(settings: Settings) -> dict[str, str]:
    """The workers' names, and the phase of each."""
    if not settings.prefill_workers:
        return dict.fromkeys(_numbered("worker", settings.workers), settings.phase)
    prefill, decode = settings.prefill_workers, settings.decode_workers
    return dict.fromkeys(_numbered(PREFILL, prefill), PREFILL) | dict.fromkeys(_numbered(DECODE, decode), DECODE)


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"{name}-{number + 1}" for number in range(count))


def _process(
    settings: Settings,
    directory_endpoint: str,
    role: str,
    instance: str,
    number: int,
    workers: int,
) -> Process:
    port = mesh_metrics_port(settings, role, number)
    own = settings.replaced(
        api_keys_file=",".join(_key_files(settings)) if role == "streamer" else "",
        instance=instance,
        metrics_port=port,
        directory=directory_endpoint,
        host_directory=False,
        bind="",
        advertise="",
    )
    devices: dict[str, str] = {}
    if role == "worker" and workers > 1:
        own = own.replaced(
            cores=shared_cores(own.cores, number, workers),
            record_steps=own.record_steps and f"{own.record_steps}.{instance}",
        )
        devices = shared_devices(os.environ, number, workers)
    command = rooms.command("services.cli", "run", role)
    environment = {**environment_of(os.environ, role, own), **devices}
    return Process(role, instance, port, Child(instance, command, environment, role, AFTER.get(role, ()), STAGE[role]))


@contextmanager
def keys_file(settings: Settings) -> Iterator[Path]:
    """The API keys of the settings for the streamers, in a file that is ours alone while the mesh runs. No other role
    needs them, and an environment would show them to everything that runs as this user and to whatever reports it.
    Files of keys are read by the streamers, which read them again when they change."""
    path = _keys_path(settings)
    # A mesh that was killed has left its own.
    path.unlink(missing_ok=True)
    try:
        if settings.own_keys:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write("\n".join([*settings.own_keys, ""]))
        yield path
    finally:
        path.unlink(missing_ok=True)


def _key_files(settings: Settings) -> list[str]:
    own = [str(_keys_path(settings))] if settings.own_keys else []
    return own + [str(Path(each).absolute()) for each in key_files(settings.api_keys_file)]


def _keys_path(settings: Settings) -> Path:
    return (run_dir(settings) / "api_keys").absolute()


def with_free_port(settings: Settings) -> Settings:
    """Port 0 of the streamer, made a number here: the banner and the health check need it. Raises PortsTaken."""
    if settings.port or settings.uds:
        return settings
    try:
        with _listening(settings.host, 0) as probe:
            return settings.replaced(port=probe.getsockname()[1])
    except OSError as error:
        raise PortsTaken(_refused(settings.host, 0, "the HTTP server", "--port", error)) from None


def check_ports(settings: Settings, processes: list[Process]) -> None:
    """Raises PortsTaken with every port that cannot be had, before anything is started."""
    problems: list[str] = []
    wanted = [] if settings.uds else [(settings.host, settings.port, "the HTTP server", "--port")]
    wanted += [
        (settings.metrics_host, each.metrics_port, f"{each.instance}'s metrics", "--metrics-port")
        for each in processes
        if each.metrics_port != NO_PORT
    ]
    for host, port, what, flag in wanted:
        try:
            _listening(host, port).close()
        except OSError as error:
            problems.append(_refused(host, port, what, flag, error))
    if settings.nnodes > 1 and not settings.directory:
        problems += _meeting_problems(settings)
    if problems:
        raise PortsTaken("\n".join(problems))


def _meeting_problems(settings: Settings) -> Iterator[str]:
    host, port = meeting_address(settings.master_addr, settings.master_port)
    try:
        _listening(host, port).close()
    except OSError as error:
        yield (
            f"{host}:{port}, where the nodes are to meet, cannot be had ({error.strerror or error})\n"
            "  fix: set --master-addr to an address of this machine that the other nodes reach, and --master-port to a"
            " free port"
        )


def _refused(host: str, port: int, what: str, flag: str, error: OSError) -> str:
    """An address that isn't this machine's is not for want of a port."""
    told = f"{host}:{port} for {what} cannot be had ({error.strerror or error})"
    if isinstance(error, socket.gaierror) or error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        flag = flag.replace("port", "host")
        return (
            f"{told}: {host} is no address of this machine\n"
            f"  fix: {flag} 127.0.0.1 for this machine alone, or {flag} 0.0.0.0 for all of its addresses"
        )
    if error.errno == errno.EACCES:
        return f"{told}\n  fix: {flag} {port + 8000}, as ports below 1024 need rights"
    return f"{told}: choose another with {flag} (or {PREFIX}{flag[2:].replace('-', '_').upper()})"


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    probe = socket.socket(family, kind, protocol)
    try:
        # As servers do: a connection in TIME_WAIT isn't a taken port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)
    except BaseException:
        probe.close()
        raise
    return probe
