"""Decisions as arithmetic: arrays in, new arrays out; no clock, no I/O, no randomness.

The modules at the top define the nouns that every package uses: `quota` (what every scope may use), `state` (what the
decider remembers), `usage` (what it reports), `policy_change` (what survives a change of policy), and `codec` and
`policy_codec` (the stored bytes). The packages, uppermost first, are `batch` and `shares`, `fair`, `limits`, `names`
and `arithmetic`. It may import numpy, pyarrow and `errors`. Start with `quota`, then `batch.admission`: one batch.
"""
