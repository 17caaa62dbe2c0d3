"""Paths that load balancers, dashboards and clients ask for without reading a page first."""

from __future__ import annotations

import re

import pytest
from player import MODEL, Ended, asked, message_of
from running_mesh import RunningMesh

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "path", ["/health", "/ping", "/health/ready", "/health/live", "/metrics", "/v1/models", "/version", "/", "/docs",
             "/openapi.json"]
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_probe_is_answered(method: str, path: str, mock_mesh: RunningMesh, ended: Ended) -> None:
    status, text = asked(mock_mesh.url, method, path)
    assert status == 200 and bool(text) == (method == "GET")
    ended("worked")


@pytest.mark.parametrize(
    "path", ["/models", "/v1/v1/models", "/openai/v1/models", "/v1/models/", "/v1/health", "/get_model_info"]
)
def test_a_path_that_is_nearly_right_says_which_is(path: str, mock_mesh: RunningMesh, ended: Ended) -> None:
    status, text = asked(mock_mesh.url, "GET", path)
    (meant,) = re.findall(r"(?:Did you mean |Use GET )(/[\w/]+)", message_of(text))
    assert status == 404 and asked(mock_mesh.url, "GET", meant)[0] == 200
    ended("said what to do")


@pytest.mark.parametrize("path", ["/v1", "/v1/"])
def test_the_base_url_says_what_is_below_it(path: str, mock_mesh: RunningMesh, ended: Ended) -> None:
    status, text = asked(mock_mesh.url, "GET", path)
    below = re.findall(r"/v1/[\w/]+", message_of(text))
    assert status == 404 and "/v1/models" in below and "/v1/chat/completions" in below
    assert asked(mock_mesh.url, "GET", "/v1/models")[0] == 200
    ended("said what to do")


def test_a_route_says_which_method_it_takes(mock_mesh: RunningMesh, ended: Ended) -> None:
    status, text = asked(mock_mesh.url, "GET", "/v1/completions")
    (method,) = re.findall(r"takes (\w+)", message_of(text))
    assert status == 405
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
    assert asked(mock_mesh.url, method, "/v1/completions", body)[0] == 200
    ended("said what to do")
