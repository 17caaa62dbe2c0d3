"""What is known of texts, in memory that compiled loops work on. Knows token ids only.

step.py is the one call of a batch, taking_in.py its first half, layout.py where all its words lie. loops.py is the
arithmetic of a suffix automaton that many texts grow in, automaton.py its memory, validate.py what must hold of it.
guessing.py and predicting.py are what guesses are made of; blending.py makes one of all of them, by chances.py and
candidates.py. A segment is learned text that changes no more, a library keeps segments.
"""
