"""The admin API: PIP-82's calls and our own over a policy store, their answers, and the roles that may make them.

It may import `admin.watch`, `admin.tokens` and the layers below `admin`. Start with `app`, then `calls`.
"""
