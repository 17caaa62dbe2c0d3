"""Fields of a request as rows: a field of a dataclass that is made with `number`, `integer`, `boolean`, `text` or
`other` says in one place what a request may send, what it means, and what stands for "not given".

From these rows come the checks of a body (streamer/openai/fields.py), /openapi.json, the table in docs/use/http.md, and
for sampling parameters the worker's own check (sampling.py). The type on the wire is the dataclass's. No msgspec, no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

# Bounds that only keep numbers in a machine's words: no schema shows them.
LARGEST = 2**31 - 1
SEEDS = -(2**63), 2**63 - 1
_UNSHOWN = {LARGEST, *SEEDS}
_KEY = "parameter"


@dataclass(frozen=True, slots=True)
class Parameter:
    """`name`: the request's; `attribute`: the dataclass's. `above`: `low` itself is out. `floor`: a lower value means
    the floor. `of_model`: what a request doesn't set is the served model's value. `schema`: of what is no number,
    boolean or text; its reader is in the streamer."""

    name: str
    attribute: str
    kind: str
    help: str
    low: float = 0
    high: float = LARGEST
    above: bool = False
    floor: float | None = None
    default: Any = None
    of_model: bool = False
    schema: Mapping[str, Any] | None = None

    def takes(self, value: Any) -> bool:
        """Whether a number is one that a request may send."""
        kinds = int if self.kind == "integer" else int | float
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        # Written so that NaN is out, too.
        return self.low <= value <= self.high and not (self.above and value == self.low)

    @property
    def range(self) -> str:
        if self.kind == "text":
            return f"at most {self.high} characters"
        whole = ", whole" if self.kind == "integer" else ""
        return f"{'above ' if self.above else ''}{self.low:g} to {self.high:g}{whole}"

    @property
    def accepted(self) -> str:
        """For people; "": see the help."""
        if self.kind in ("boolean", "other"):
            return "boolean" if self.kind == "boolean" else ""
        if self.kind == "text":
            return f"text, {self.range}"
        whole = "integer" if self.kind == "integer" else "number"
        low = "" if self.low in _UNSHOWN else f"{self.low:g}"
        high = "" if self.high in _UNSHOWN else f"{self.high:g}"
        return f"{whole} {low} to {high}" if low and high else f"{whole} from {low}" if low else whole

    def described(self) -> dict[str, Any]:
        """Its JSON schema. The default is shown where it means the same to a request as to us."""
        if self.schema is not None:
            return dict(self.schema)
        if self.kind == "boolean":
            return {"type": "boolean", "default": False, "description": self.help}
        if self.kind == "text":
            return {"type": "string", "maxLength": self.high, "description": self.help}
        bounds = {"minimum": self.low, "maximum": self.high}
        shown = {name: bound for name, bound in bounds.items() if bound not in _UNSHOWN}
        if self.kind == "integer":
            return {"type": "integer", "description": self.help, **shown}
        default = {} if self.of_model else {"default": self.default}
        return {"type": "number", **shown, "description": self.help, **default}


def number(
    default: float, help: str, low: float, high: float, *, above: bool = False, of_model: bool = False
) -> Any:
    return _row(default, kind="number", help=help, low=low, high=high, above=above, of_model=of_model)


def integer(
    default: int | None, help: str, low: int = 0, high: int = LARGEST, *, floor: int | None = None,
    of_model: bool = False,
) -> Any:  # fmt: skip
    return _row(default, kind="integer", help=help, low=low, high=high, floor=floor, of_model=of_model)


def boolean(help: str) -> Any:
    return _row(False, kind="boolean", help=help)


def text(help: str, longest: int, *, name: str = "") -> Any:
    return _row("", kind="text", help=help, high=longest, name=name)


def other(default: Any, schema: Mapping[str, Any], *, name: str = "") -> Any:
    """`default`: a value, or list, dict or tuple for an empty one."""
    return _row(default, kind="other", help=str(schema.get("description", "")), schema=schema, name=name)


def _row(default: Any, **told: Any) -> Any:
    given: dict[str, Any] = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return field(metadata={_KEY: told}, **given)


def parameters(holder: type) -> dict[str, Parameter]:
    """The rows of a dataclass, by the request's name, in order."""
    found = {}
    for each in fields(holder):
        if (told := each.metadata.get(_KEY)) is not None:
            name = told.get("name") or each.name
            default = None if each.default is MISSING else each.default
            found[name] = Parameter(**{**told, "name": name, "attribute": each.name, "default": default})
    return found
