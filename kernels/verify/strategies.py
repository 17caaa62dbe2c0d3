"""Which draft tokens are accepted and which token comes next: each strategy, once.

These functions are called by plain Python (reference.py) and compiled into the loops for CPUs (cpu_rows.py). The two
give the same facts of rows in their own ways; what follows from the facts is decided here. README.md beside this file
has the rules and why the lossless ones are lossless.

A strategy reads one `sequence`:

    begin, end, vocabulary     its rows, and how many ids there are
    rule                       a record of questions.RULE
    drafted[row], parents[row] by row of the batch
    notes[0 .. end - begin]    room for a strategy's own numbers, which begin as anything
    look(row, masses)          the facts of a row; `masses`: `total`, `mass` and `mean_below` will be asked for
    own(row)                   the token that a row chooses; -1: its logits are invalid
    own_without(facts, count)  the same without the first `count` ids in `notes`
    uniform(row)               the random number that verifies the row's draft token
    is_certain(row)            whether that token was drafted without probabilities
    draft_prob(row)            the probability with which it was drafted; 1 if certain
    rest(facts, row, joint)    sum of max(joint * target_probs - draft_probs, 0)
    residual(facts, row, weight)  a token sampled from max(weight * target_probs - draft_probs, 0)

and the facts of a row, which may be asked for until `look` or `own` is called with another row:

    valid                      else nothing else may be asked
    total, mass(token)         of all allowed ids, and of one
    rank(token)                how many ids are more probable
    below(token)               z minus the highest z
    allows(token)              whether top_k, top_p and min_p allow it
    whole(), mean_below()      ln(total / UNIT), and the mean of `below` over the distribution

A verdict is the last row of the accepted path and the token that follows it, (FAILED, FAILED) if a row that is needed
is invalid.
"""

from __future__ import annotations

import math

from kernels.cpu_program import shared
from kernels.verify.questions import ALL, BLOCK, MATCH, NORMAL, REJECTION, TOPP, TYPICAL

FAILED = -1


@shared
def judge(sequence):
    rule = sequence.rule
    if rule.accept != NORMAL:
        return unconditional(sequence)
    # At temperature 0 all strategies are this one.
    if rule.inverse == 0.0 or rule.strategy == MATCH:
        return match(sequence)
    if rule.strategy == BLOCK and is_chain(sequence):
        return block(sequence)
    # Joint acceptance is defined for chains; the tokens of a tree are verified one by one.
    if rule.strategy == REJECTION or rule.strategy == BLOCK:
        return rejection(sequence)
    return members(sequence)


@shared
def is_chain(sequence):
    chain = True
    for row in range(sequence.begin + 1, sequence.end):
        chain = chain and sequence.parents[row] == row - 1
    return chain


@shared
def is_token(sequence, row):
    """Whether the row's draft token is in the vocabulary: others are never accepted."""
    return sequence.drafted[row] >= 0 and sequence.drafted[row] < sequence.vocabulary


@shared
def next_child(sequence, row, after):
    """The first child of a row after row `after` whose token is in the vocabulary; `end` if there is none."""
    child = after + 1
    while child < sequence.end and not (sequence.parents[child] == row and is_token(sequence, child)):
        child += 1
    return child


@shared
def unconditional(sequence):
    """The accept policies: ALL accepts the first child of every row, NONE accepts nothing."""
    row = sequence.begin
    while True:
        token = sequence.own(row)
        child = next_child(sequence, row, row) if sequence.rule.accept == ALL else sequence.end
        if token < 0 or child == sequence.end:
            return row if token >= 0 else FAILED, token
        row = child


# The text stays the same -----------------------------------------------------------------------------------


@shared
def match(sequence):
    """Accept a draft token if it is what its parent's row chooses."""
    row = sequence.begin
    while True:
        token = sequence.own(row)
        if token < 0:
            return FAILED, token
        child = next_child(sequence, row, row)
        while child < sequence.end and sequence.drafted[child] != token:
            child = next_child(sequence, row, child)
        if child == sequence.end:
            return row, token
        row = child


# The distribution stays the same ---------------------------------------------------------------------------


@shared
def rejection(sequence):
    """Accept a draft token with probability min(1, target_prob / draft_prob); else sample what is left."""
    row = sequence.begin
    while True:
        facts = sequence.look(row, True)
        if not facts.valid:
            return FAILED, FAILED
        child, token = _accepted_child(sequence, facts, row)
        if child == sequence.end:
            return row, token
        row = child


@shared
def _accepted_child(sequence, facts, row):
    """The child that is accepted; or `end`, and the token sampled after all of them were rejected."""
    left, rejected = facts.total, 0
    child = next_child(sequence, row, row)
    while child < sequence.end:
        token = sequence.drafted[child]
        # A rejected token is removed, and with it the mass of later children with the same id.
        mass = 0 if _is_noted(sequence, token, rejected) else facts.mass(token)
        if is_accepted(sequence.uniform(child), sequence.draft_prob(child), mass, left):
            return child, FAILED
        if not sequence.is_certain(child):
            return sequence.end, sequence.residual(facts, child, 1.0)
        sequence.notes[rejected] = token
        left, rejected = left - mass, rejected + 1
        child = next_child(sequence, row, child)
    return sequence.end, sequence.own_without(facts, rejected)


@shared
def _is_noted(sequence, token, count):
    noted = False
    for place in range(count):
        noted = noted or sequence.notes[place] == token
    return noted


@shared
def is_accepted(chance, draft_prob, mass, total):
    """chance < target_prob / draft_prob, without dividing."""
    return chance * draft_prob * float(total) < float(mass)


@shared
def block(sequence):
    """Accept as much of a chain as its joint probability allows (Sun et al., 2024)."""
    row, last, joint, joint_at_last = sequence.begin, sequence.begin, 1.0, 1.0
    facts = sequence.look(row, True)
    if not facts.valid:
        return FAILED, FAILED
    while True:
        child, next_joint, rest = row + 1, 1.0, 0.0
        goes_on = child < sequence.end and is_token(sequence, child)
        if goes_on:
            target_prob = float(facts.mass(sequence.drafted[child])) / float(facts.total)
            next_joint = joint_with(joint, target_prob, sequence.draft_prob(child))
            if row > sequence.begin:
                certain = sequence.is_certain(child)
                rest = joint * (1.0 - target_prob) if certain else sequence.rest(facts, child, joint)
            # The draft ends before a row that is invalid.
            facts = sequence.look(child, True)
            goes_on = facts.valid
        if row > sequence.begin and sequence.uniform(row) < (threshold(joint, rest) if goes_on else joint):
            last, joint_at_last = row, joint
        if not goes_on:
            break
        row, joint = child, next_joint
    return last, _after_block(sequence, last, row, joint_at_last)


@shared
def joint_with(joint, target_prob, draft_prob):
    """The probability that a chain is accepted up to its next token."""
    if target_prob == 0.0:
        return 0.0
    return min(1.0, joint * target_prob / draft_prob) if draft_prob > 0.0 else 1.0


@shared
def threshold(joint, rest):
    """The probability that a chain is accepted up to here, once it is rejected further on."""
    return rest / (rest + 1.0 - joint) if rest > 0.0 else 0.0


@shared
def _after_block(sequence, last, end, joint):
    """The token that follows row `last` of a draft whose last row is `end`."""
    if last == end:
        return sequence.own(last)
    facts, rejected = sequence.look(last, True), last + 1
    if not sequence.is_certain(rejected):
        return sequence.residual(facts, rejected, joint)
    sequence.notes[0] = sequence.drafted[rejected]
    return sequence.own_without(facts, 1)


# The text and its distribution change ----------------------------------------------------------------------


@shared
def members(sequence):
    """TYPICAL and TOPP: the deepest path whose tokens are all good enough, each by itself."""
    # Of a row on such a path, 1 + its depth.
    for place in range(sequence.end - sequence.begin):
        sequence.notes[place] = 1 if place == 0 else 0
    last, deepest = sequence.begin, 0
    for row in range(sequence.begin, sequence.end):
        reached = sequence.notes[row - sequence.begin]
        if reached == 0:
            continue
        facts = sequence.look(row, sequence.rule.strategy == TYPICAL)
        if not facts.valid:
            if row == sequence.begin:
                return FAILED, FAILED
            continue
        if reached - 1 > deepest:
            last, deepest = row, reached - 1
        _note_members(sequence, facts, row, reached + 1)
    if sequence.rule.strategy == TOPP and is_chain(sequence):
        last = _after_window(sequence, last)
    return last, sequence.own(last)


@shared
def _note_members(sequence, facts, row, reached):
    rule, child = sequence.rule, next_child(sequence, row, row)
    if child == sequence.end:
        return
    typical, whole, least = rule.strategy == TYPICAL, 0.0, 0.0
    if typical:
        whole = facts.whole()
        least = typical_threshold(rule, whole - facts.mean_below())
    while child < sequence.end:
        token = sequence.drafted[child]
        if facts.allows(token):
            good = facts.below(token) - whole > least if typical else facts.rank(token) < rule.candidates
            if good:
                sequence.notes[child - sequence.begin] = reached
        child = next_child(sequence, row, child)


@shared
def typical_threshold(rule, entropy):
    """The logarithm of the probability above which a token is typical of a row with this entropy."""
    return min(float(rule.epsilon), float(rule.delta) - entropy)


@shared
def _after_window(sequence, last):
    """The end of the window, if the first rejected token is its row's second most probable one, and every token of
    the window the most probable one; else `last`."""
    end = last + 1 + sequence.rule.window
    if sequence.rule.window == 0 or end >= sequence.end:
        return last
    for row in range(last, end):
        facts = sequence.look(row, False)
        if not facts.valid or not is_token(sequence, row + 1):
            return last
        token = sequence.drafted[row + 1]
        # A row with only one possible id has no second.
        if facts.rank(token) != (1 if row == last else 0) or facts.below(token) == -math.inf:
            return last
    return end if sequence.look(end, False).valid else last
