"""Files that a tree writes: recorded at the freeze, brought back to that instant before a restore.

At the freeze `trees.include` (what was asked for), then `record.record`; before a restore `trees.put_back`, then
`bring_back.bring_back`. `rules` says which files go along by themselves, and why.
"""
