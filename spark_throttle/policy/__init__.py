"""What people want enforced: the policy document, its text forms, how it is compiled, and sources that may change.

It may import `files` and `core`; it knows no store, no job and no Spark. Start with `model`, then `compile`.
"""
