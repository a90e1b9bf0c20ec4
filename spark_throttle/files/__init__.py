"""Files of control planes and servers: written whole, by their owner alone where they are private, and records in them.

It may import `errors` and `record`, and knows nothing of the contents that it keeps. Start with `storage`.
"""
