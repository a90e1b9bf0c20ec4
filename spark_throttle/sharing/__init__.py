"""One quota over several jobs: each reports its demand, divides as the others do, and leases its part for a time.

It may import `files` and `core`, but no policies, no stores and no control plane; `control.shared_quotas` joins it to
one. Start with `sharing`, then `lease_keeper`; `docs/several-jobs.md` says why the jobs never pass the quota.
"""
