"""The heads that can be trained. A head is one file here and one line of NETS."""

from __future__ import annotations

from services.training.nets.block import BlockNet
from services.training.nets.draft_model import DraftModelNet
from services.training.nets.eagle3 import Eagle3Net
from services.training.nets.hydra import HydraNet
from services.training.nets.medusa import MedusaNet
from services.training.nets.mtp import MtpNet
from services.training.nets.net import Net

NETS: dict[str, type[Net]] = {
    "block": BlockNet,
    "draft_model": DraftModelNet,
    "eagle3": Eagle3Net,
    "hydra": HydraNet,
    "medusa": MedusaNet,
    "mtp": MtpNet,
}

__all__ = ["NETS", "BlockNet", "DraftModelNet", "Eagle3Net", "HydraNet", "MedusaNet", "MtpNet", "Net"]
