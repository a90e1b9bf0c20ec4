"""The division of quotas between the jobs that share them, and the rates of destinations that push back.

It may import `core.policy_change` and the packages below, but not `core.batch`: no row is decided here. Start with
`allocation` (weighted max-min).
"""
