"""What follows from a worker's settings and the model that is loaded: its limits, and what it says of itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from services.api.messages import ModelCard, Speculation
from services.api.methods import AUTO, METHODS
from services.api.pooling import LAST, POOLINGS
from services.api.ranks import ranks_by_phase, ranks_of
from services.api.strategies import Verification, policies_for_requests, strategies_for_requests
from services.worker.loading import model_name, served_methods
from services.worker.running.runner import Facts, Runner
from services.worker.scheduling.limits import Limits, limits_of

if TYPE_CHECKING:
    from services.api.settings import Settings

log = logging.getLogger("specmesh.worker")


def limits_for(settings: Settings, runner: Runner, secret: bytes) -> Limits:
    """`secret`: what pages are named with."""
    facts = runner.facts
    return limits_of(
        facts,
        max_context=min(settings.max_context or facts.max_context, facts.max_context),
        max_sequences=settings.max_sequences or facts.max_sequences,
        max_step_tokens=settings.max_step_tokens or facts.max_step_tokens,
        rows_cost=not runner.elsewhere,
        longest_step=0.0 if runner.elsewhere else settings.max_itl_ms / 1000,
        max_waiting=settings.max_waiting,
        method=settings.method,
        methods=served_methods(runner.drafters),
        model_steps=settings.num_model_steps,
        head=next((name for name in runner.drafters if METHODS[name].has_network), ""),
        num_speculative_tokens=settings.num_speculative_tokens,
        verification=_verification(settings),
        trees=settings.draft_trees or bool(settings.draft_tree_shape),
        allow_lossy=settings.allow_lossy,
        prefix_cache=settings.prefix_cache,
        priority_seconds=settings.priority_seconds,
        secret=secret,
    )


def _verification(settings: Settings) -> Verification:
    return Verification(
        strategy=settings.verify_strategy,
        accept_policy=settings.accept_policy,
        max_candidate_len=settings.max_candidate_len,
        verify_window=settings.verify_window,
        typical_epsilon=settings.typical_epsilon,
        typical_delta=settings.typical_delta,
    )


def warn_of_lossy(verification: Verification) -> None:
    if verification.accept_policy == "accept_all":
        log.warning("accept_policy is accept_all: drafts are accepted unseen, so the text is not the model's")
    elif not verification.lossless:
        log.warning("verify_strategy %s makes draft tokens more likely in sampled text", verification.strategy)


def card_of(settings: Settings, limits: Limits, facts: Facts) -> ModelCard:
    return ModelCard(
        model=model_name(settings),
        max_context=limits.max_length,
        vocab_size=limits.vocab_size,
        eos_token_ids=list(limits.eos_token_ids),
        methods=list(limits.methods),
        verify_strategies=strategies_for_requests(limits.verification, limits.allow_lossy),
        accept_policies=policies_for_requests(limits.verification, limits.allow_lossy),
        max_speculative_tokens=limits.most_speculative_tokens,
        engine=settings.engine,
        path=facts.path,
        strict=facts.strict,
        speculation=_own_choice(limits),
        vocabulary=facts.vocabulary,
        embedding_size=facts.hidden_size,
        pooling=pooling_for(settings, facts),
    )


def pooling_for(settings: Settings, facts: Facts) -> str:
    if settings.pooling != AUTO:
        return str(settings.pooling)
    if facts.pooling and facts.pooling not in POOLINGS:
        log.warning("the model pools by %s, which isn't served: embeddings are of the last token", facts.pooling[:80])
    return facts.pooling if facts.pooling in POOLINGS else LAST


def _own_choice(limits: Limits) -> Speculation:
    """The speculation parameters of a request that sets none."""
    own = limits.verification
    return Speculation(
        method=limits.method,
        num_speculative_tokens=limits.draft_length(limits.method),
        verify_strategy=own.strategy,
        accept_policy=own.accept_policy,
        max_candidate_len=own.max_candidate_len,
        verify_window=own.verify_window,
        typical_epsilon=own.typical_epsilon,
        typical_delta=own.typical_delta,
    )


def serves_of(settings: Settings, facts: Facts) -> str:
    """What has to be the same for all workers of a mesh, as a stream may move from one to another."""
    vocabulary = facts.vocabulary[-12:] or "unknown"
    return f"{model_name(settings)[-40:]} ({_layout(settings, facts)}, vocabulary {vocabulary})"


def _layout(settings: Settings, facts: Facts) -> str:
    """The same for workers of both phases where the user has given each a number of ranks."""
    if by_phase := ranks_by_phase(settings):
        return by_phase + facts.path.removeprefix(f"{ranks_of(settings)} ranks: ")[:30]
    return facts.path[:30]
