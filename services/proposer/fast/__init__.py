"""The compiled suffix index: the same drafts as the plain drafters', some hundred times faster.

    texts.py        texts being followed, and the call of a batch
    namespaces.py   what the requests of one namespace may draft from
    drafting/       the compiled step: texts are indexed, every source drafts
    automaton/      suffix automata and their memory

docs/internals/suffix-index.md explains how it works.
"""
