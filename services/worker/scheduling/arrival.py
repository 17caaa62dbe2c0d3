"""Turns a request into a sequence, or refuses it with a reason. Functions of the request and the limits alone."""

from __future__ import annotations

from services.api import strategies as policy
from services.api.messages import LONGEST_CALLER, LONGEST_SALT, MOST_PRIORITY, Failed, Generate
from services.api.methods import AUTO, METHODS, NAIVE, OFF, method_for
from services.api.pooling import POOLINGS
from services.api.sampling import problem, stop_ids
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import Limits
from services.worker.scheduling.sequence import Sequence, Tally


def refusal(generate: Generate, limits: Limits, waiting: int, draining: bool) -> Failed | None:
    """Why the request is refused; None if it isn't. `waiting`: the number of waiting requests."""
    if draining:
        return failed(generate, "draining", "this worker is stopping", retryable=True)
    if waiting >= limits.max_waiting:
        return failed(generate, "overloaded", "too many requests wait for this worker", retryable=True)
    wrong = (
        _cannot_pool(generate)
        or problem(generate.token_ids, generate.prompt_tokens, generate.sampling, limits.vocab_size)
        or _unknown(generate, limits)
        or _out_of_range(generate)
    )
    if wrong:
        return failed(generate, "invalid", wrong)
    # The prompt of an embedding may fill the context.
    if generate.prompt_tokens >= limits.max_length + bool(generate.pooling):
        return failed(
            generate,
            "too_long",
            f"{generate.prompt_tokens} prompt tokens leave no room in a context of {limits.max_length}",
        )
    return None


def _unknown(generate: Generate, limits: Limits) -> str:
    asked = generate.speculation
    if asked.method not in ("", OFF, *limits.methods):
        return f"speculation method {asked.method[:40]!r} is not known here"
    return policy.problem(asked, limits.verification, limits.allow_lossy)


def _cannot_pool(generate: Generate) -> str:
    if not generate.pooling:
        return ""
    if generate.pooling not in POOLINGS:
        return f"pooling {generate.pooling[:40]!r} is not known here"
    sampling = generate.sampling
    if sampling.max_tokens or sampling.prompt_logprobs >= 0 or len(generate.token_ids) != generate.prompt_tokens:
        return "an embedding is of a prompt alone: no tokens, and no log-probabilities"
    return ""


def _out_of_range(generate: Generate) -> str:
    if abs(generate.priority) > MOST_PRIORITY:
        return f"priority lies outside {-MOST_PRIORITY}..{MOST_PRIORITY}"
    if len(generate.cache_salt) > LONGEST_SALT:
        return f"cache_salt is longer than {LONGEST_SALT} characters"
    if len(generate.caller) > LONGEST_CALLER:
        return f"caller is longer than {LONGEST_CALLER} characters"
    return ""


def make_sequence(event: Arrived, limits: Limits, tallies: dict[tuple[str, str], Tally]) -> Sequence:
    """The sequence of a request that wasn't refused."""
    generate = event.generate
    asked = generate.speculation
    method = NAIVE if generate.pooling else method_for(asked.method, limits.method, bool(generate.prediction))
    verification = policy.verification_for(asked, limits.verification, generate.sampling)
    drafter = drafter_for(method, limits)
    # With auto, text drafts and learned ones are verified as one tree.
    trees = limits.trees or (method == AUTO and bool(drafter))
    return Sequence(
        sequence_id=event.sequence_id,
        generate=generate,
        deadline=event.deadline,
        # A level of priority is a head start (or handicap) of some seconds, so a request that waits long enough comes
        # before all new ones, whatever their priority.
        due=event.at + generate.priority * limits.priority_seconds,
        max_length=limits.max_length,
        stop_ids=stop_ids(generate.sampling, limits.eos_token_ids),
        method=method,
        verification=verification,
        draft_length=0 if method == NAIVE else limits.draft_length(method, asked.num_speculative_tokens),
        trees=limits.branch_pages > 0 and (trees if asked.trees is None else asked.trees),
        drafter=drafter,
        cached=event.cached,
        lent=event.lent,
        tally=tallies.setdefault((method, verification.strategy), Tally()),
    )


def drafter_for(method: str, limits: Limits) -> str:
    """The drafter in the worker that drafts with this method, "": none. Its layers have keys and values in pages."""
    return method if METHODS[method].runs == "worker" else limits.head if method == AUTO else ""


def drafter_of(generate: Generate, limits: Limits) -> str:
    """Of a request that may be refused later."""
    asked = generate.speculation.method
    known = asked in ("", OFF, *limits.methods)
    return drafter_for(method_for(asked, limits.method, bool(generate.prediction)), limits) if known else ""


def failed(generate: Generate, reason: str, message: str, retryable: bool = False) -> Failed:
    return Failed(
        request_id=generate.request_id,
        attempt=generate.attempt,
        reason=reason,
        message=message,
        retryable=retryable,
    )
