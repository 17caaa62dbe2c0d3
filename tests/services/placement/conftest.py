from __future__ import annotations

import pytest

from bench.running_mesh import free_ports


@pytest.fixture
def free_port_range() -> int:
    return free_ports(64)
