"""Decisions as arithmetic: arrays in, new arrays out; no clock, no I/O, no randomness.

At the top stand the nouns that all rooms speak of: `quota` (what every scope may use), `state` (what a shard
remembers), `usage` (what it reports), `policy_change` (what a change of policy leaves of them) and `codec` (their
bytes). The rooms, the upper ones first: `batch` and `lending`, `fair`, `limits`, `names`, `arithmetic`. It may import
numpy, pyarrow and `errors`. Begin with `quota`, then `batch.admission`: one micro-batch of one shard.
"""
