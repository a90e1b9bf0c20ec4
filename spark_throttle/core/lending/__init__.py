"""The division of shared quotas, at every epoch: between the jobs that share them, and between the shards of a job.

It may import `core.policy_change`, `core.fair` and the packages below, but not `core.batch`: no row is decided here.
Start with `allocation` (weighted max-min), then `grants`.
"""
