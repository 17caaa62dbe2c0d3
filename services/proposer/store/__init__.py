"""The store: what drafters learn, on disk. library.py is what the index uses.

    library.py      what callers learn, ask for and upload; two threads, whose steps are tried again (steps.py)
    learning.py     text that is not on disk yet; uploads.py: corpora that are being uploaded; state.py: what is known
    database.py     the database; files.py: its row of a file; folder.py: where both are, and locks
    builder.py      seals, merges and evicts, as policy.py decides; corpora.py builds corpora (source.py: their texts)
    shelf.py        makes and opens segment files
"""
