"""Epochs only grow: in a process, in a folder, and whatever the clock says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mesh import epoch
from mesh.epoch import FILE, MAX_EPOCH, new_epoch, next_epoch


def test_each_epoch_of_a_process_is_newer() -> None:
    given = [new_epoch() for _ in range(1000)]
    assert given == sorted(set(given))


def test_after_the_clock_has_stepped_back_a_restart_is_still_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = next_epoch(tmp_path)
    # Another process, an hour earlier.
    monkeypatch.setattr(epoch, "_newest", 0)
    monkeypatch.setattr(epoch.time, "time_ns", lambda: (before // 1000 - 3600 * 1000) * 1_000_000)
    assert new_epoch() < before < next_epoch(tmp_path) < next_epoch(tmp_path)


def test_what_a_peer_knows_is_exceeded_and_kept(tmp_path: Path) -> None:
    told = next_epoch(tmp_path) + 10**9
    assert next_epoch(tmp_path, at_least=told) == told
    assert next_epoch(tmp_path) == told + 1


def test_a_lie_does_not_lead_beyond_the_largest_epoch(tmp_path: Path) -> None:
    assert next_epoch(tmp_path, at_least=2**63) == MAX_EPOCH


@pytest.mark.parametrize("kept", [b"", b"nonsense", b"\xff\xfe", b"-5"])
def test_a_damaged_file_is_written_anew(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / FILE).write_bytes(kept)
    first = next_epoch(tmp_path)
    assert next_epoch(tmp_path) > first


def test_the_file_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        next_epoch(tmp_path)
    assert os.path.getsize(tmp_path / "elsewhere") == 0


def test_processes_that_start_at_once_get_different_epochs(tmp_path: Path) -> None:
    code = "import sys, pathlib; from mesh.epoch import next_epoch\n"
    code += "print(*(next_epoch(pathlib.Path(sys.argv[1])) for _ in range(200)))"
    running = [subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) for _ in range(3)]
    given = [list(map(int, process.communicate()[0].split())) for process in running]
    assert all(each == sorted(each) for each in given)
    assert len(set().union(*given)) == 600
