"""A script of deploy/ as a module: they are run, not imported, and form no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def deploy_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deploy_{name}", DEPLOY / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for it there.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
