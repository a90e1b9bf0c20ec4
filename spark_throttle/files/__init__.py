"""How anything lies in a directory, on a disk or an object store: whole files, and JSON that says its format.

It may import `errors`, and knows nothing of what it keeps. Begin with `storage`.
"""
