"""Files in a directory, on a disk or an object store: files written whole, and JSON that names its format.

It may import `errors`, and knows nothing of the contents that it keeps. Start with `storage`.
"""
