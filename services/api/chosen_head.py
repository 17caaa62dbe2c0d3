"""The drafter that runs in the worker, by the settings: its method, and where its network comes from. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from models.heads.shipped import shipped_heads
from models.heads.sources import ensure_head, method_of
from models.heads.verifier import verifier_of
from services.api.methods import AUTO, METHODS
from services.api.settings import Settings, cache_dir

# The setting draft_model: no head, although one comes with specmesh.
NONE = "none"


class ChosenHead(NamedTuple):
    """`source`: a folder, a hub id or "own"; "" for a drafter without a network."""

    method: str
    source: str = ""

    def folder(self, settings: Settings, target: Path) -> Path:
        """Fetched if need be. Raises ModelError."""
        return ensure_head(self.method, self.source, target, cache_dir(settings))


def with_verifier(settings: Settings) -> Settings:
    """Where the setting model is a head that names its model, that model and the head. Raises ModelError."""
    given = str(settings.model)
    model = verifier_of(given, cache_dir(settings))
    return settings.replaced(model=model, draft_model=settings.draft_model or given) if model else settings


def chosen_head(settings: Settings) -> ChosenHead | None:
    """None: there is none. Raises ModelError."""
    method = str(settings.method)
    row = METHODS[method]
    given = str(settings.draft_model)
    if not given and (row.has_network or method == AUTO):
        given = _shipped(settings, method)
    if row.runs == "worker":
        return ChosenHead(method, given if row.has_network and given != NONE else "")
    return None if given in ("", NONE) else ChosenHead(method_of(given, cache_dir(settings)), given)


def _shipped(settings: Settings, method: str) -> str:
    """The folder of the head that comes with specmesh; of several, for auto the best."""
    heads = shipped_heads(str(settings.model))
    if method == AUTO:
        return str(next(iter(heads.values()), ""))
    return str(heads.get(method, ""))
