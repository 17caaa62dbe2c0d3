"""deploy/lock.py: what it makes of the resolver's answer. tests/deploy/test_set_up.py reads the locks themselves."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.deploy_script import deploy_script

ONE, TWO = (f"sha256:{digit * 64}" for digit in "12")
RESOLVED = f"""\
aiohttp==3.14.5 ; sys_platform == 'linux' \\
    --hash={ONE} \\
    --hash={TWO}
colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash={ONE}
cffi==2.1.1 ; implementation_name == 'pypy' \\
    --hash={ONE}
only-arm==1 ; platform_machine == 'aarch64' \\
    --hash={TWO}
"""


@pytest.fixture
def lock() -> ModuleType:
    return deploy_script("lock")


def test_what_other_systems_need_is_left_out_and_a_marker_that_always_holds_too(lock: ModuleType) -> None:
    aiohttp, arm = lock.needed(lock.parse(RESOLVED))
    assert (aiohttp.name, aiohttp.version, aiohttp.marker, aiohttp.hashes) == ("aiohttp", "3.14.5", "", {ONE, TWO})
    assert (arm.name, arm.marker) == ("only-arm", "platform_machine == 'aarch64'")


def test_what_is_written_is_read_back(lock: ModuleType) -> None:
    entries = lock.parse(RESOLVED)
    assert lock.parse("\n".join(each.text() for each in entries)) == entries


def test_hashes_of_cpu_builds_stay_until_the_version_changes(
    lock: ModuleType, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(lock, "LOCKS", tmp_path)
    with pytest.raises(SystemExit, match="TORCH_INDEX"):
        lock.cpu_builds("2.0+cpu")
    (lock.LOCKS / "torch-cpu.txt").write_text(f"torch==2.0+cpu \\\n    --hash={ONE}\n")
    assert [each.hashes for each in lock.cpu_builds("2.0+cpu")] == [{ONE}]
    with pytest.raises(SystemExit, match=r"torch 2\.1\+cpu"):
        lock.cpu_builds("2.1+cpu")
