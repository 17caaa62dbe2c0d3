"""Clients and agents of other makers, as their pages show them, against a real mesh with the default model.

    make test-clients       installs them in an environment of their own, starts a mesh and runs this folder there

A file a client, skipped where that client isn't installed. The model is small: calls and forms are asked for, so that a
grammar holds them, and no test looks at the sense of an answer. Knows nothing of specmesh's code.
"""

from __future__ import annotations

import os

import pytest

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def server() -> str:
    """The base URL for clients of OpenAI's API."""
    if url := os.environ.get("SPECMESH_CLIENTS_URL"):
        return f"{url}/v1"
    pytest.skip("SPECMESH_CLIENTS_URL is not set; make test-clients starts a mesh")


@pytest.fixture(scope="session")
def model() -> str:
    return MODEL
