"""A real Prometheus beside a mesh of `specmesh up`, with the rules and alerts of deploy/prometheus."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.running_mesh import ROLES, RunningMesh, free_ports

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


class Prometheus:
    def __init__(self, folder: Path, mesh: RunningMesh, alerts_wait: str) -> None:
        folder.mkdir()
        self.url = f"http://127.0.0.1:{free_ports(1)}"
        (folder / "rules.yml").write_text((RULES / "rules.yml").read_text())
        # As they are, but that nobody has to wait for minutes.
        alerts = re.sub(r"(?m)^(\s+for:) .*$", rf"\1 {alerts_wait}", (RULES / "alerts.yml").read_text())
        (folder / "alerts.yml").write_text(alerts)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(self._config(mesh)))
        self._log = (folder / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self.url.removeprefix('http://')}"],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @staticmethod
    def _config(mesh: RunningMesh) -> dict[str, Any]:
        """deploy/prometheus/prometheus.yml for a mesh on this machine, in a hurry."""
        config: dict[str, Any] = yaml.safe_load((RULES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "specmesh"]
        for each in job["static_configs"]:
            each["targets"] = [f"127.0.0.1:{mesh.metrics_base + ROLES.index(each['labels']['role'])}"]
        config["scrape_configs"] = [job]
        return config

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Its samples that are numbers; raises on what Prometheus doesn't understand."""
        answer = self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
        return [sample for sample in answer["data"]["result"] if sample["value"][1] != "NaN"]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Those that fire, by name."""
        found = self._get("/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in found if alert["state"] == "firing"}

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{urllib.parse.unquote_plus(path)}: {error.read().decode()}") from None

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


@contextmanager
def running_prometheus(folder: Path, mesh: RunningMesh, alerts_wait: str) -> Iterator[Prometheus]:
    prometheus = Prometheus(folder, mesh, alerts_wait)
    try:
        until(prometheus.is_up, 60, lambda: (folder / "prometheus.log").read_text()[-2000:])
        yield prometheus
    finally:
        prometheus.stop()


def until(true: Callable[[], bool], seconds: float, why: Callable[[], Any]) -> None:
    """Wait for something other processes will do."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.2)
