"""A suffix automaton that grows with many texts at once and counts what followed what: loops.py is its arithmetic,
automaton.py its memory, followers.py who reads and writes it, validate.py what must hold. Knows token ids only.
"""
