"""`specmesh doctor`: looks for what keeps the mesh from running here, and names the fix of each.

The checks are small functions in machine.py, gpu.py and mesh.py, and bundle.py writes the archive for a report; this
file knows their order, how a broken check is told from a broken machine, and how findings are shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from services.api.settings import Settings, SettingsError
from services.cli.chat_drafts import printable
from services.cli.doctor import gpu, machine, mesh
from services.cli.doctor.finding import Finding, bad, ok, warn
from services.cli.flags import read_settings
from services.runtime.refusal import refuse

Check = Callable[[Settings], list[Finding]]

CHECKS: dict[str, Check] = {
    "model": machine.model,
    "disk": machine.disk,
    "store_dir": machine.store,
    "memory": machine.memory,
    "open files": machine.open_files,
    "shared memory": machine.shared_memory,
    "processor": machine.processor,
    "torch": machine.torch,
    "gpu": gpu.gpu,
    "packages": machine.packages,
    "ports": mesh.ports,
    "run_dir": mesh.run_folder,
    "keys": mesh.keys,
    "peers": mesh.peers,
    "directory": mesh.directory,
}
_SIGNS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def main(options: argparse.Namespace) -> int:
    findings = []
    for finding in examine(options):
        findings.append(finding)
        if not options.json:
            _print(finding)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif all(finding.level == "ok" for finding in findings):
        print("\nNothing is wrong.")
    if options.bundle and not _bundled(options, findings):
        return 1
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def examine(options: argparse.Namespace) -> Iterator[Finding]:
    try:
        settings = read_settings(options)
    except SettingsError as error:
        # The other checks would look at the wrong ports and folders.
        for problem in error.problems:
            what, _, fix = problem.partition("\n  fix: ")
            yield bad("settings", what, fix or "correct it where it says, or see `specmesh up --help`")
        return
    for note in settings.notes:
        yield warn("settings", note, "leave it out")
    yield ok("settings", "readable, all within their ranges")
    for name, check in CHECKS.items():
        try:
            yield from check(settings)
        # One check that trips must not hide what the others find.
        except Exception as error:
            yield Finding(name, "warn", f"could not be checked: {type(error).__name__}: {error}", "see the message")


def _bundled(options: argparse.Namespace, findings: Sequence[Finding]) -> bool:
    from services.cli.doctor import bundle

    path = Path(options.bundle)
    try:
        settings = read_settings(options)
    except SettingsError:
        settings = None
    try:
        count = bundle.write(path, findings, settings, options.url)
    except OSError as error:
        refuse(f"{path} can't be written: {error.strerror or error}\n  fix: give --bundle the name of a new file")
        return False
    print(f"\n{path}: {count} files; look through them before you send it", file=sys.stderr)
    return True


def _print(finding: Finding) -> None:
    """Some of it is what another process answered."""
    print(printable(f"{_SIGNS[finding.level]}  {finding.name:<14} {finding.what}"), flush=True)
    if finding.fix:
        print(printable(f"{'':<20} fix: {finding.fix}"), flush=True)
