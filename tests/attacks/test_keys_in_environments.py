"""Whoever reads a role's environment, or its command line, finds no API key; and the keys guard the server."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flow.running_mesh import RunningMesh, running_mesh

KEYS = ("first-secret", "second-secret")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mesh") / "keys"


@pytest.fixture(scope="module")
def mesh(keys: Path) -> Iterator[RunningMesh]:
    folder = keys.parent
    keys.write_text(f"{KEYS[0]}\n")
    (folder / "config.toml").write_text(f'api_keys = "{KEYS[1]}"\napi_keys_file = "{folder}/keys"\n')
    with running_mesh(folder, config=str(folder / "config.toml"), engine="mock", mock_profile="{}") as running:
        yield running


def test_no_role_shows_a_key(mesh: RunningMesh) -> None:
    for role, pid in mesh.processes().items():
        shown = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
        assert not [key for key in KEYS if key.encode() in shown], role


def test_keys_of_the_setting_and_of_the_file_open_the_api_and_nothing_else_does(mesh: RunningMesh) -> None:
    assert [status(mesh, key) for key in ("", "another", *KEYS)] == [401, 401, 200, 200]


def test_a_key_that_left_the_file_is_refused_at_once_and_a_new_one_is_known(mesh: RunningMesh, keys: Path) -> None:
    (keys.parent / "next").write_text("third-secret\n")
    (keys.parent / "next").replace(keys)
    assert [status(mesh, key) for key in (KEYS[0], "third-secret", KEYS[1], "")] == [401, 200, 200, 401]
    assert "third-secret" not in mesh.text()


def status(mesh: RunningMesh, key: str) -> int:
    request = urllib.request.Request(f"{mesh.url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
