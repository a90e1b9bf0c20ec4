"""What people want enforced: the policy document, its forms as text, how it is compiled, and sources of it that change.

It may import `files` and `core`; it knows no store, no job and no Spark. Begin with `model`, then `compile`.
"""
