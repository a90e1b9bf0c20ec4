"""Shared quotas divided: between the jobs that share them, and between the shards of a job, at every epoch.

It may import `core.policy_change`, `core.fair` and what is below, but not `core.batch`: no row is decided here. Begin
with `allocation` (weighted max-min), then `grants`.
"""
