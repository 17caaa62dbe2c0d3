from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))

from browser import Page, chromium, page
from running_mesh import RunningMesh, running_mesh


@pytest.fixture(scope="package")
def browser() -> Iterator[str]:
    with chromium() as address:
        yield address


@pytest.fixture(scope="package")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningMesh]:
    """All four processes with the default model, in demo mode."""
    folder = tmp_path_factory.mktemp("mesh")
    config = folder / "demo.toml"
    config.write_text("demo = true\n")
    with running_mesh(folder, config=config) as running:
        yield running


@pytest.fixture
async def opened(mesh: RunningMesh, browser: str) -> AsyncIterator[Page]:
    """The page in a tab of its own, once it knows the model."""
    async with page(browser) as tab:
        await tab.goto(mesh.url)
        await tab.until("document.getElementById('model').value !== ''")
        yield tab
