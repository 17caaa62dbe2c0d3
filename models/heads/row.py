"""What is said of a kind of head in one row, at the end of its file. Everything that differs by kind is made from it:
the method with its choices, aliases and labels, what train-drafter can make, and how a folder is told from others."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from models.config import Fields
from models.heads.form import Form
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.spec import Network

# The drafting loops that kinds share (services/worker/speculation/heads): a pass of the network for each token, or a
# small network for each of the next tokens.
PASSES, RESIDUAL = "head_drafter:HeadDrafter", "residual_drafter:ResidualDrafter"

# What a folder's config and the names of its tensors say the head consists of, beside its target. Reads no values.
# Raises `ModelError` that says what is wrong or doesn't fit the target.
Reader = Callable[[Fields, Collection[str], Network], Head | ResidualHeads]


@dataclass(frozen=True, slots=True)
class HeadRow:
    # Its method, and the name of its file.
    name: str
    read: Reader
    # Its name on a screen, what it is, and how it drafts, each as a phrase.
    label: str
    what: str
    help: str
    # The longest draft where nothing is asked for.
    length: int
    # A regular expression that the name of one of its tensors matches; "": it is a whole model. Of the kinds that a
    # folder's names match, the last one in the table is the folder's.
    mark: str = ""
    # "module:Class" in services/worker/speculation/heads.
    loop: str = PASSES
    # What other servers call it in their speculative config.
    aliases: tuple[str, ...] = ()
    # Whether it may be inside the target model's own folder.
    with_model: bool = False
    # What `specmesh train-drafter` makes, given the target network and the size of the head's vocabulary; None: this
    # kind can't be trained. Raises `ValueError` where none can be made for the model.
    form: Callable[[Network, int], Form] | None = None

    def made(self, network: Network, vocabulary: int) -> tuple[Form, Head | ResidualHeads]:
        """As `train-drafter` makes it."""
        assert self.form is not None
        form = self.form(network, vocabulary)
        return form, self.read(Fields(form.config), form.names, network)
