"""Reads the fields `speculation` and `prediction` of a body.

First checks that need only the body, then those that need the model card. Knows neither sockets nor the mesh.
"""

from __future__ import annotations

from typing import Any

from services.api.messages import ModelCard, Speculation
from services.api.methods import NAIVE, OFF
from services.api.names import NAME_RULE, is_name
from services.api.strategies import ACCEPT_POLICIES, AUTO, LONGEST_WINDOW, MOST_CANDIDATES, STRATEGIES
from services.streamer.openai.errors import ApiError, bad_value
from services.streamer.openai.fields import BodyFields, check_list, read_content, shown, wrong_type

MAX_CORPORA = 16


def read_speculation(fields: BodyFields) -> tuple[Speculation, str]:
    """The speculation parameters, and the name of the namespace, if any."""
    value, return_drafts = fields.get("speculation"), fields.boolean("return_drafts")
    if value is None:
        return Speculation(return_drafts=return_drafts), ""
    wish = BodyFields(value, "speculation")
    method, count = _method_and_length(wish)
    candidates = wish.integer("max_candidate_len", 1, MOST_CANDIDATES)
    window = wish.integer("verify_window", 0, LONGEST_WINDOW)
    epsilon = wish.number("typical_epsilon", 0.0, 1.0, above=True)
    delta = wish.number("typical_delta", 0.0, 1.0, above=True)
    speculation = Speculation(
        method=method,
        num_speculative_tokens=-1 if count is None else count,
        verify_strategy=wish.text("verify_strategy", 64) or "",
        accept_policy=wish.text("accept_policy", 64) or "",
        max_candidate_len=-1 if candidates is None else candidates,
        verify_window=-1 if window is None else window,
        typical_epsilon=-1.0 if epsilon is None else epsilon,
        typical_delta=-1.0 if delta is None else delta,
        corpora=_corpora(wish),
        learn=wish.get("learn") is None or wish.boolean("learn"),
        return_drafts=return_drafts,
        trees=None if wish.get("trees") is None else wish.boolean("trees"),
    )
    namespace = wish.get("namespace")
    name = "" if namespace is None else _name(namespace, wish.at("namespace"))
    wish.nothing_else()
    return speculation, name


def _method_and_length(wish: BodyFields) -> tuple[str, int | None]:
    """`off: true` and the method off are the method naive; contradictions are refused."""
    method = wish.text("method", 64) or ""
    count = wish.integer("num_speculative_tokens", 0, 1024)
    off = wish.boolean("off")
    if off and method not in ("", OFF, NAIVE):
        raise bad_value(wish.at("off"), f"contradicts speculation.method ({shown(method)})")
    if not (off or method == OFF):
        return method, count
    if wish.get("off") is False:
        raise bad_value(wish.at("off"), f"contradicts speculation.method ({shown(method)})")
    if count:
        where = wish.at("off" if off else "method")
        raise bad_value(where, f"contradicts speculation.num_speculative_tokens ({count})")
    return NAIVE, count


def _corpora(wish: BodyFields) -> list[str] | None:
    """One name in `corpus`, or several, or none at all, in `corpora`; None: all of the namespace."""
    one, several = wish.get("corpus"), wish.get("corpora")
    if one is not None and several is not None:
        raise bad_value(wish.at("corpus"), "contradicts speculation.corpora: give one of them")
    if one is not None:
        return [_name(one, wish.at("corpus"))]
    if several is None:
        return None
    names = check_list(several, wish.at("corpora"), MAX_CORPORA)
    return list(dict.fromkeys(_name(each, wish.at(f"corpora[{place}]")) for place, each in enumerate(names)))


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(where, "a string", value)
    if not is_name(value):
        raise bad_value(where, NAME_RULE)
    return value


def read_prediction(fields: BodyFields) -> str | None:
    """The expected answer; None if the request has none."""
    value = fields.get("prediction")
    if value is None:
        return None
    prediction = BodyFields(value, "prediction")
    if (kind := prediction.get("type")) != "content":
        raise bad_value(prediction.at("type"), f"must be content, not {shown(kind)}")
    text = read_content(prediction)
    prediction.nothing_else()
    return text


def check_speculation(wish: Speculation, card: ModelCard) -> None:
    if wish.method and wish.method not in card.methods:
        raise bad_value("speculation.method", f"must be one of {', '.join(card.methods)}")
    strategies = [AUTO, *card.verify_strategies]
    if wish.verify_strategy and wish.verify_strategy not in strategies:
        known = wish.verify_strategy in STRATEGIES
        raise _not_served("speculation.verify_strategy", wish.verify_strategy, strategies, known)
    policies = card.accept_policies
    if wish.accept_policy and wish.accept_policy not in policies:
        known = wish.accept_policy in ACCEPT_POLICIES
        raise _not_served("speculation.accept_policy", wish.accept_policy, policies, known)
    if wish.num_speculative_tokens > card.max_speculative_tokens:
        message = f"must be in 0..{card.max_speculative_tokens}"
        raise bad_value("speculation.num_speculative_tokens", message, "out_of_range")


def _not_served(where: str, asked: str, served: list[str], known: bool) -> ApiError:
    why = "; it may change the text, which this server doesn't allow (its setting allow_lossy)" if known else ""
    return bad_value(where, f"must be one of {', '.join(served)}, not {shown(asked)}{why}")


def longest_draft(wish: Speculation, card: ModelCard) -> int:
    """Maximum draft length of the request, in tokens; 0: no drafts."""
    if (wish.method or card.speculation.method) == NAIVE:
        return 0
    if wish.num_speculative_tokens >= 0:
        return min(wish.num_speculative_tokens, card.max_speculative_tokens)
    return card.max_speculative_tokens
