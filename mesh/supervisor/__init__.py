"""Which processes should run: decide.py says what is to be done, crashes.py when one that has crashed is started again.
Who starts them acts on it: services/runtime/children.py on one machine, services/placement/keeper.py on a cluster."""

from mesh.supervisor.crashes import EXIT_CONFIG, EXIT_FENCED, Crashes, Policy

__all__ = ["EXIT_CONFIG", "EXIT_FENCED", "Crashes", "Policy"]
