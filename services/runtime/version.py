"""The version of specmesh that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    try:
        return version("specmesh")
    except PackageNotFoundError:
        return "from source"
