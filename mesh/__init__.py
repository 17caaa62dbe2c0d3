"""An actor runtime over ZeroMQ and msgpack. Knows nothing of tokens or models (docs/internals/mesh.md)."""
