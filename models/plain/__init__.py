"""Any network in plain torch: the truth that other executors are measured by, and what runs where they don't."""

from models.plain.decoder import PlainExecutor

__all__ = ["PlainExecutor"]
