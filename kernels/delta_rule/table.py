"""Columns of the table [S, COLUMNS] int32 that says what of each sequence is run: its first row and their number, its
state, the positions of its first row and of the first row to be run, and where the state stays.

    begin      start          settled     end
      |  kept    |  new rows: text | draft |         run: begin to end; the state stays at `settled`
"""

FIRST, COUNT, STATE, START, BEGIN, SETTLED, COLUMNS = range(7)
