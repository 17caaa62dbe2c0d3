"""The directory: who plays which role, where, and in what state. membership.py decides, actor.py holds the table, and
client.py is what every process runs."""

from mesh.directory.actor import DIRECTORY, DIRECTORY_KINDS, DirectoryActor
from mesh.directory.client import DirectoryClient
from mesh.directory.membership import Member, State

__all__ = ["DIRECTORY", "DIRECTORY_KINDS", "DirectoryActor", "DirectoryClient", "Member", "State"]
