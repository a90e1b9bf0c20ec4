"""The policy document: its fields, its text forms, its compilation into columns, and the sources that it comes from.

It may import `files` and `core`; it knows no store, no job and no Spark. Start with `model`, then `compile`.
"""
