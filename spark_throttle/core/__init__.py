"""Decisions as arithmetic: arrays in, new arrays out; no clock, no I/O, no randomness.

The modules at the top define the nouns that every package uses: `quota` (what every scope may use), `state` (what the
decider remembers), `usage` (what it reports), `policy_change` (what survives a change of policy), and `epoch` (what
batches take from the control plane). The packages, uppermost first, are `batch` and `shares`, `fair`, `limits`, `names`
and `arithmetic`. It may import numpy, pyarrow, `record` and `errors`. Start with `quota`, then `batch.admission`: one
batch.
"""
