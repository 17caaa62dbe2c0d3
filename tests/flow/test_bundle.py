"""The archive of `specmesh doctor --bundle`, of a mesh that was asked, also wrongly, for a while: nothing of what was
asked and answered is in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from running_mesh import RunningMesh, running_mesh

from bench.running_mesh import ROOT

KEY = "sk-walrus-secret"
# The model repeats it.
PROMPT = "walrus1 walrus2 walrus3 walrus4 walrus5 walrus6 walrus7"
COMPLETIONS = "/v1/completions"
ASKED: list[tuple[str, Any]] = [
    (COMPLETIONS, {}),
    (COMPLETIONS, {"walrus": PROMPT}),
    (COMPLETIONS, {"temperature": "walrus"}),
    (COMPLETIONS, {"model": "walrus"}),
    (COMPLETIONS, {"stop": ["walrus12"], "user": "walrus", "cache_salt": "walrus"}),
    (COMPLETIONS, {"structured_outputs": {"regex": "walrus(("}}),
    (COMPLETIONS, {"structured_outputs": {"json": {"type": "walrus"}}}),
    (COMPLETIONS, {"structured_outputs": {"grammar": 'start: "walrus" walrus'}}),
    (COMPLETIONS, {"prompt": [10**9]}),
    ("/v1/chat/completions", {"messages": [{"role": "walrus", "content": PROMPT}]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
    ("/walrus/walrus", {}),
    ("/tokenize", {"prompt": PROMPT}),
]


def asked(mesh: RunningMesh, path: str, more: Any, key: str = KEY) -> str:
    body = {"model": "smollm2-135m-instruct", "prompt": PROMPT, "max_tokens": 40, "temperature": 0} | more
    if "messages" in body:
        del body["prompt"]
    head = {"content-type": "application/json", "authorization": f"Bearer {key}", "x-request-id": "walrus"}
    request = urllib.request.Request(f"{mesh.url}{path}", json.dumps(body).encode(), head)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_that_was_asked_or_answered_is_in_the_archive(tmp_path: Path, form: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} name=walrus\n")
    keys.chmod(0o600)
    with running_mesh(tmp_path, api_keys_file=keys, log_level="debug", log_format=form) as mesh:
        said = json.loads(asked(mesh, COMPLETIONS, {}))["choices"][0]["text"]
        for path, more in ASKED:
            asked(mesh, path, more)
        asked(mesh, COMPLETIONS, {}, key="walrus")
        flags = [f"--run-dir={tmp_path / 'run'}", f"--store-dir={tmp_path / 'store'}", f"--port={mesh.port}",
                 f"--metrics-port={mesh.metrics_base}", f"--api-keys-file={keys}"]  # fmt: skip
        command = [sys.executable, "-m", "services.cli", "doctor", "--bundle", str(tmp_path / "report.tar.gz"), *flags]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECMESH_")}
        done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        found = {name: file.read().decode() for name, file in files.items() if file is not None}
    assert len(said) > 20
    logs = "".join(text for name, text in found.items() if "/logs/" in name)
    assert 'route="POST /v1/completions" status=200' in logs and "status=400" in logs
    assert "specmesh:prompt_tokens_total" in "".join(found.values())
    for planted in ("walrus", KEY, said.strip(), *(line for line in said.splitlines() if len(line) > 12)):
        assert [name for name, text in found.items() if planted in text] == [], planted
