"""The suffix index: what text drafters draft from. SuffixIndex is all that others use; the folders below are its own.

    texts.py        texts being followed, and the call of a batch
    namespaces.py   what the requests of one namespace may draft from
    index.py        the two together with the libraries (learned text on disk)
    drafting/       the compiled step: texts are indexed, every source drafts
    automaton/      suffix automata and their memory
    segments/       learned text that doesn't change any more, in mapped files
    library/        journals, segments and corpora of all namespaces on disk

docs/internals/suffix-index.md explains how it works. `compiling` is what a process does before it forks.
"""

from services.proposer.fast import compiling
from services.proposer.fast.corpora import Corpora
from services.proposer.fast.index import IndexStats, SuffixIndex
from services.proposer.fast.libraries import namespace_key
from services.proposer.fast.library.corpora import CorpusRefused
from services.proposer.fast.library.library import Stats
from services.proposer.fast.texts import CALIBRATED, CORPUS, NGRAM, OWN, PREDICTION, SHARED, STORE, Rule

__all__ = [
    "CALIBRATED", "CORPUS", "NGRAM", "OWN", "PREDICTION", "SHARED", "STORE", "Corpora", "CorpusRefused", "IndexStats",
    "Rule", "Stats", "SuffixIndex", "compiling", "namespace_key",
]  # fmt: skip
