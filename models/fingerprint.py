"""By what two machines see that their folders hold the same model: hashes of config.json, of the tensors' headers and
of a few of their values. Reads little of a large model; no torch."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError
from models.folder_headers import FolderHeaders
from models.sources import read_json

# Of so many tensors, at places that are spread over their names, as many bytes from the middle.
SAMPLED, SAMPLE_BYTES = 256, 1024
# Who saved a model, and with what.
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    name: str
    config: str
    tensors: str
    values: str

    def difference(self, other: Fingerprint) -> str:
        """What `other` has otherwise, in words; "": they are one model, whatever their folders are called."""
        if self.config != other.config:
            return "another config.json"
        if self.tensors != other.tensors:
            return "tensors of other names, types or shapes"
        return "" if self.values == other.values else "other weights"


def fingerprint(folder: Path) -> Fingerprint:
    """Raises `ModelError`."""
    config = read_json(folder / "config.json")
    kept = {key: value for key, value in config.items() if key not in _NOT_OF_THE_MODEL}
    headers = FolderHeaders(folder)
    listed = sorted((name, header.dtype, header.shape) for name, header in headers.tensors.items())
    return Fingerprint(
        folder.name,
        _digest(json.dumps(kept, sort_keys=True).encode()),
        _digest(json.dumps(listed).encode()),
        _digest(_values(headers)),
    )


def _values(headers: FolderHeaders) -> bytes:
    names = sorted(headers.tensors)
    read = bytearray()
    for name in names[:: -(-len(names) // SAMPLED) or 1]:
        header, path = headers.tensors[name], headers.file_of[name]
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                begin = max(header.begin, (header.begin + header.end - SAMPLE_BYTES) // 2)
                file.seek(8 + length + begin)
                read += file.read(min(SAMPLE_BYTES, header.end - begin))
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}", "check the file and its rights") from None
    return bytes(read)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
