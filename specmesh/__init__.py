"""specmesh as it is installed: one package, with the rooms of the code inside it (specmesh/rooms.py)."""
