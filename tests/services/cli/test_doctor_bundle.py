"""`specmesh doctor --bundle`: one archive with what a report needs, in which nothing of a planted text is left."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.api.settings import Settings
from services.cli.doctor.log_lines import without_text
from services.cli.main import main
from services.runtime.log import JsonLines, TextLines, fields
from services.runtime.process import log_name

PROMPT, ANSWER, KEY, TOKEN = "purple walrus", "walrus-answer", "sk-walrus-1234", "hf_walrus_5678"
PLANTED = "walrus"
# More than comes at once.
METRICS = f'specmesh:key_requests_total{{key="{PLANTED}"}} 3.0\n' * 20_000 + "specmesh:num_requests_running 1.0\n"


@pytest.fixture
def server() -> Iterator[str]:
    """What a mesh that runs would say. The checks of ports are given others."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (METRICS if self.path == "/metrics" else json.dumps({"status": "ready", "roles": {}})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    found.server_close()
    thread.join()


def logged(formatter: logging.Formatter, say: Callable[[logging.Logger], object], name: str = "x") -> list[str]:
    """What a process would have written."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(self.format(record).splitlines())

    log = logging.Logger(name)
    handler = Kept()
    handler.setFormatter(formatter)
    log.addHandler(handler)
    say(log)
    return lines


def fails(log: logging.Logger) -> None:
    try:
        raise ValueError(f"{PROMPT} is no token\n{PROMPT}\n  File {PROMPT}")
    except ValueError:
        log.exception("drafter %s failed; it forgets these sequences", PROMPT)


WHO = log_name("worker", Settings.for_tests(instance="worker-1"))
FORMS = [TextLines(WHO), JsonLines(WHO)]
# How text could come into a log: in an argument, an error, a field, an id, a path, a line of a library's own.
SAID: list[Callable[[logging.Logger], object]] = [
    fails,
    lambda log: log.error("the model can't be loaded: there is no model named '%s'", PROMPT),
    lambda log: log.info("%s attempt %d: %s", PROMPT, 2, ANSWER),
    lambda log: log.error("%s", PROMPT),
    lambda log: log.error(PROMPT),
    lambda log: log.info("ready\n" + PROMPT),
]
REQUEST = fields(
    id=PROMPT, route=f"POST /v1/{PLANTED}", status=404, error=PROMPT, seconds=0.25, answer=ANSWER, method=PLANTED,
    drafted=8, stream=True,
)  # fmt: skip


def log_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, form in enumerate(FORMS):
        lines = [line for say in SAID for line in logged(form, say)]
        lines += logged(form, lambda log: log.info("request", extra=REQUEST), "specmesh.requests")
        (folder / f"worker-{number}.log").write_text("\n".join([*lines, PROMPT, f"{KEY} {TOKEN}", ""]))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "keys").write_text(f"{KEY} name={PLANTED}\n")
    monkeypatch.setenv("SPECMESH_API_KEYS_FILE", "keys")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Where a secret shouldn't be.
    monkeypatch.setenv("SPECMESH_CHAT_TEMPLATE", f"/tmp/{KEY}/{TOKEN}")
    log_files(tmp_path / "run" / "logs")
    library = tmp_path / "store" / ("3-" + "0f" * 16)
    library.mkdir(parents=True)
    (library / "library.db").write_bytes(b"12345")
    return tmp_path


def doctor(*words: str) -> int:
    own = ["--run-dir=run", "--store-dir=store", "--engine=mock", "--metrics-port=-1", "--port=0"]
    return main(["doctor", "--bundle", "report.tar.gz", *own, *words])


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_nothing_of_prompts_answers_keys_and_names_is_in_it(machine: Path, server: str) -> None:
    doctor("--url", server)
    files = read(machine / "report.tar.gz")
    assert {"about.json", "settings.json", "doctor.json", "store.json", "logs/worker-0.log", "logs/worker-1.log",
            "mesh/ready.json", "mesh/mesh.json", "mesh/metrics.txt"} == files.keys()  # fmt: skip
    assert [name for name, text in files.items() if PLANTED in text.lower()] == []
    assert (machine / "report.tar.gz").stat().st_mode & 0o077 == 0


def test_what_a_report_needs_is_in_it(machine: Path, server: str) -> None:
    doctor("--url", server)
    files = read(machine / "report.tar.gz")
    settings = json.loads(files["settings.json"])
    assert settings["api_keys"]["value"] == "set"
    assert settings["engine"]["value"] == "mock"
    about = json.loads(files["about.json"])
    assert about["python"] == sys.version and about["packages"]["numpy"] and about["cores"]["ours"]
    assert "specmesh:num_requests_running 1.0" in files["mesh/metrics.txt"]
    assert json.loads(files["store.json"])[0]["bytes"] == {".db": 5}
    assert any(each["name"] == "settings" for each in json.loads(files["doctor.json"]))


@pytest.mark.parametrize("form", FORMS, ids=["text", "json"])
def test_a_log_keeps_what_happened_and_where(form: logging.Formatter) -> None:
    lines = [line for say in SAID for line in logged(form, say)]
    lines += logged(form, lambda log: log.info("request", extra=REQUEST), "specmesh.requests")
    lines += logged(form, lambda log: log.info("draining for at most %g s", 30.0))
    kept = "\n".join(without_text(lines))
    for wanted in (
        "ERROR worker/worker-1 x: drafter … failed; it forgets these sequences",
        f'  File "{__file__}", line ', "\nValueError\n",
        "the model can't be loaded: there is no model named …", "… attempt 2: …", "draining for at most 30 s",
        "request id=… route=… status=404 error=… seconds=0.25 answer=… method=… drafted=8 stream=",
    ):  # fmt: skip
        assert wanted in kept, kept


def test_known_routes_methods_and_ids_of_ours_stay() -> None:
    known = fields(id="req-0123456789abcdef", route="POST /v1/chat/completions", error="deadline", method="auto")
    (line,) = logged(FORMS[0], lambda log: log.info("request", extra=known), "specmesh.requests")
    assert list(without_text([line])) == [line]


def test_settings_that_cannot_be_read_leave_a_report(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECMESH_PORT", PROMPT)
    assert doctor() == 1
    files = read(machine / "report.tar.gz")
    assert files.keys() == {"about.json", "doctor.json"}
    assert "SPECMESH_PORT" in files["doctor.json"] and PLANTED not in "".join(files.values())


def test_a_file_that_is_there_is_not_written_over(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "report.tar.gz").write_text("mine")
    assert doctor() == 1
    assert (machine / "report.tar.gz").read_text() == "mine"
    assert "give --bundle the name of a new file" in capsys.readouterr().err
