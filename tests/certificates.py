"""Certificates for tests, made by openssl: self-signed, for localhost and 127.0.0.1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Made(NamedTuple):
    certfile: str
    keyfile: str


def make_certificate(folder: Path, name: str = "first") -> Made:
    """`name`: its common name, by which a test tells one from another."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    made = Made(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout", made.keyfile, "-out", made.certfile,
    )  # fmt: skip
    return made


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)


def put(new: Made, place: Made) -> None:
    """As tools that renew certificates do: each file is replaced at once."""
    for source, target in zip(new, place, strict=True):
        Path(source).replace(target)
