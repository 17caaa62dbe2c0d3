"""Benchmarks: modules with `HELP`, `flags(parser)` and `measure(options) -> figures`. Nobody imports them."""
