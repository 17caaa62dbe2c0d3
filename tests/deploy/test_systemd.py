"""deploy/systemd/specmesh.service: known to systemd, and in step with what `up` does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from services.api.settings import ROWS, Settings, load_settings
from services.cli.main import parser
from services.cli.up import LEAVE_GRACE

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "specmesh.service"


def values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def environment() -> dict[str, str]:
    pairs = [pair for line in values("Environment") for pair in shlex.split(line)]
    return dict(pair.split("=", 1) for pair in pairs)


def test_its_command_is_one_of_ours() -> None:
    (command,) = values("ExecStart")
    program, *words = shlex.split(command)
    assert program == "/opt/specmesh/bin/specmesh"
    assert words[0] == "up"
    assert parser().parse_args(words).config == "/etc/specmesh/config.toml"


def test_its_environment_are_settings_and_what_they_name_is_made_by_systemd() -> None:
    given = environment()
    settings = load_settings({}, {name: value for name, value in given.items() if name.startswith("SPECMESH_")}, None)
    assert (settings.run_dir, settings.store_dir) == ("/run/specmesh", "/var/lib/specmesh/store")
    assert {name.removeprefix("SPECMESH_").lower() for name in given if name.startswith("SPECMESH_")} < set(ROWS)
    made = {"/run/specmesh", "/var/lib/specmesh", "/var/cache/specmesh"}
    assert [values(f"{kind}Directory") for kind in ("Runtime", "State", "Cache")] == [["specmesh"]] * 3
    assert all(any(value.startswith(place) for place in made) for value in given.values())


def test_a_stop_takes_as_long_as_running_requests_may() -> None:
    (seconds,) = values("TimeoutStopSec")
    assert float(seconds) > Settings.for_tests().drain_timeout + LEAVE_GRACE
    # Else the roles would drain by themselves, before `up` has told the streamers to refuse new requests.
    assert values("KillMode") == ["mixed"]
    # Else one role without memory would end all of them.
    assert values("OOMPolicy") == ["continue"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """The command isn't installed here: another one stands for it."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/specmesh/bin/specmesh", sys.executable))
    told = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    ours = [line for line in told.stderr.splitlines() if UNIT.name in line]
    assert (told.returncode, ours) == (0, []), told.stderr
