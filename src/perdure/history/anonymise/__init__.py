"""Make a history that can be shown: names gone, structure kept. Called by `perdure history anonymise`.

What is kept is what the analyses read: who is the same as whom, which jobs are alike, attempts, arrays, groups and
dependencies, sizes, durations, weekday and hour. `key` holds the secret, `pseudonyms` turns a word into another, `texts`,
`nodes` and `submission` rewrite what is made of words, `tables` does it in bulk, `proof` looks for what is left.
"""
