"""Ask a site's own sacct for its history, day by day, resumably. Called by `perdure history pull`.

`fields` says what is asked for, `windows` cuts time, `sacct` runs one question and judges the answer, `state` remembers
which days are done, `pull` puts them together. What comes out are sacct text files, one a day, for the importer.
"""
