"""The weights of a folder, as they are stored or coded at load: what every rank of a worker reads."""

from __future__ import annotations

from pathlib import Path

from models.quantized.at_load import CodedWeights
from models.spec import Network
from models.weights import Weights


def weights_of(folder: Path, network: Network, quantization: str) -> Weights | CodedWeights:
    weights = Weights(folder)
    return weights if quantization == "none" else CodedWeights(weights, network, quantization)
