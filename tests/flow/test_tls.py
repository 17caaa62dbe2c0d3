"""https through a whole mesh: two streamers on one port, openssl and the project's own clients."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Made, make_certificate, put
from running_mesh import MOCK, RunningMesh, until

from bench.running_mesh import SPECMESH
from specmesh import LLM, SamplingParams

BODY = {"model": "smollm2-135m-instruct", "prompt": "hello", "max_tokens": 6, "stream": True}


class TlsMesh(RunningMesh):
    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def mesh(made: Made, run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsMesh]:
    settings: dict[str, Any] = {
        "engine": "mock", "mock_profile": MOCK, "streamers": 2, "run_dir": run_dir,
        "ssl_certfile": made.certfile, "ssl_keyfile": made.keyfile,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", made.certfile)  # what this process trusts
        mesh = TlsMesh(tmp_path_factory.mktemp("mesh"), settings)
        try:
            mesh.wait_until_ready()
            until(lambda: (run_dir / "door").exists(), 30.0, why=mesh.text)
            yield mesh
        finally:
            mesh.stop()


def specmesh(*words: str, trusts: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "SPECMESH_CONFIG": ""}
    environment |= {"SSL_CERT_FILE": trusts} if trusts else {}
    return subprocess.run(
        [*SPECMESH, *words], capture_output=True, text=True, timeout=60, env=environment, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip


def served_names(mesh: TlsMesh, made: Made, times: int = 12) -> set[bytes]:
    """The certificates that new connections see; several connections reach both streamers."""
    seen = set()
    for _ in range(times):
        shown = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{mesh.port}", "-CAfile", made.certfile],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        seen |= {line for line in shown.splitlines() if line.startswith(b"subject=")}
    return seen


def test_openssl_and_commands_reach_a_mesh_by_https(mesh: TlsMesh, made: Made, run_dir: Path) -> None:
    assert f"{mesh.url}/v1" in mesh.text()
    assert served_names(mesh, made, 1) == {b"subject=CN = first"}
    own = ("--port", str(mesh.port), "--ssl-certfile", made.certfile)
    status = specmesh("status", "--json", *own)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["url"] == mesh.url
    said = specmesh("chat", "--url", mesh.url, "--max-tokens", "4", "hello", trusts=made.certfile)
    assert said.returncode == 0, said.stderr
    refused = specmesh("chat", "--url", mesh.url, "hello")
    assert refused.returncode == 1
    assert "SSL_CERT_FILE" in refused.stderr
    load = ("--requests", "4", "--concurrency", "2", "--max-tokens", "4")
    loaded = specmesh("load", mesh.url, *load, trusts=made.certfile)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    with LLM(run_dir=str(run_dir)) as llm:
        assert llm.generate(["hello"], SamplingParams(max_tokens=4), use_tqdm=False)[0].outputs[0].token_ids


def test_a_renewed_certificate_is_served_by_both_streamers_and_a_running_stream_goes_on(
    mesh: TlsMesh, made: Made, tmp_path: Path
) -> None:
    long = {**BODY, "max_tokens": 400, "ignore_eos": True}
    trusted = ssl.create_default_context(cafile=made.certfile)
    request = urllib.request.Request(
        f"{mesh.url}/v1/completions", json.dumps(long).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60, context=trusted) as stream:
        assert stream.readline().startswith(b"data:")
        put(make_certificate(tmp_path, "second"), made)
        assert served_names(mesh, made) == {b"subject=CN = second"}
        assert stream.read().rstrip().endswith(b"data: [DONE]")


def test_a_wrong_file_ends_the_start_with_one_line(made: Made) -> None:
    ended = specmesh("up", "--engine=mock", "--ssl-certfile", made.certfile, "--ssl_keyfile", "/no.key")
    assert (ended.returncode, ended.stderr) == (
        1, "specmesh: ssl_keyfile: /no.key cannot be read (No such file or directory)\n",
    )  # fmt: skip


