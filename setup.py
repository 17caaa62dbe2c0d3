"""Which packages a wheel has: specmesh, with the rooms inside it (specmesh/rooms.py). All else is in pyproject.toml."""

import shutil

from setuptools import find_packages, setup

ROOMS = ("mesh", "kernels", "models", "services", "loadtest")

# setuptools packs what earlier builds have left there, too.
shutil.rmtree("build/lib", ignore_errors=True)
found = find_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")])
setup(
    packages=["specmesh", "specmesh.vllm", *(f"specmesh._rooms.{package}" for package in found)],
    package_dir={"specmesh": "specmesh", "specmesh._rooms": "."},
)
