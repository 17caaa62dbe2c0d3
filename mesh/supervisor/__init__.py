"""Which processes should run: decide.py says what is to be done, crashes.py when one that has crashed is started
again, and processes.py starts, signals and reads those of this machine."""

from mesh.supervisor.crashes import EXIT_CONFIG, EXIT_FENCED, Crashes, Policy
from mesh.supervisor.processes import Child, Processes

__all__ = ["EXIT_CONFIG", "EXIT_FENCED", "Child", "Crashes", "Policy", "Processes"]
