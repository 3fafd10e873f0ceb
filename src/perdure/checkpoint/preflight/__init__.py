"""What would prevent a checkpoint now, and what would prevent restoring one here: looked for beforehand, named, with a remedy.

`save.check` looks at a running tree, `restore.check` at a manifest and this machine; both return findings whose codes stand in
`codes`. `host`, `mapped` and `connections` record, at the freeze, what a later restore is compared with. Called by the supervisor and
by `perdure check`.

Rules are pure functions of what `scene` has read, one module a family; what each says was tried on a real CRIU, and the integration
tests hold it there.
"""
