"""A checkpoint, its control directory and its sinks are tied together, so that none is run with another's history.

It may import `files` and `core`. Start with `manifest`, then `batch_mark` and `batch_records`.
"""
