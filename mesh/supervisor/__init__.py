"""Child processes: machine.py decides which should run, processes.py starts, signals and reads them."""

from mesh.supervisor.machine import (
    EXIT_CONFIG,
    EXIT_FENCED,
    Begin,
    Child,
    Event,
    Exited,
    Fenced,
    GaveUp,
    Launch,
    Policy,
    Report,
    Supervisor,
    Tick,
)

__all__ = [
    "EXIT_CONFIG", "EXIT_FENCED", "Begin", "Child", "Event", "Exited", "Fenced", "GaveUp", "Launch", "Policy",
    "Report", "Supervisor", "Tick",
]  # fmt: skip
