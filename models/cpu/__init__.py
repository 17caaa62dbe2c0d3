"""A network as a program of compiled loops: what CPUs run."""
