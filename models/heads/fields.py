"""What the readers of heads share: the config of a head beside its target, and the tensors that it lacks."""

from __future__ import annotations

from collections.abc import Collection

from models.config import Fields
from models.errors import ModelError
from models.spec import Network, Norm

FOR_ANOTHER = "use a head that was made for this model"


def check_sizes(fields: Fields, target: Network) -> None:
    """Raises `ModelError` where a head can't belong to this target."""
    for name, own in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        said = fields.count(name, own, limit=1 << 24)
        if said != own:
            raise ModelError(f"the head's {name} is {said}, the model's {own}", FOR_ANOTHER)


def flat(fields: Fields) -> Fields:
    """Speculators keep the layer's fields in a section of their own."""
    section = fields.values.get("transformer_layer_config")
    return Fields(fields.values | section) if isinstance(section, dict) else fields


def named(names: Collection[str], *candidates: str) -> str:
    """The first of these prefixes that tensors have; the first one where none has any."""
    return next((each for each in candidates if any(name.startswith(each) for name in names)), candidates[0])


def draft_vocabulary(fields: Fields, names: Collection[str], target: Network) -> tuple[int, str]:
    """How many tokens the head's vocabulary has, and the name of the offsets from its ids to the target's: "" where it
    has the target's."""
    own = fields.count("draft_vocab_size", target.vocab_size, limit=1 << 24)
    if own == target.vocab_size:
        return own, ""
    if "d2t" not in names:
        raise ModelError(f"the head's vocabulary has {own} of {target.vocab_size} tokens, and no d2t", FOR_ANOTHER)
    return own, "d2t"


def shared_with(
    target: Network, names: Collection[str], embedding: str, head: str, norm: Norm | None = None
) -> dict[str, str]:
    """Names of the embedding and of the head's linear, as far as the folder lacks them, with those of the target.
    `norm`: one of the target's own that the head uses, too."""
    (part,) = target.head.parts
    found = {embedding: target.embedding, f"{head}.weight": f"{part.name}.weight"}
    if norm is not None:
        found[f"{norm.name}.weight"] = f"{norm.name}.weight"
    return {own: other for own, other in found.items() if own not in names}
