"""The admin API: PIP-82's calls and ours over a policy store, what they answer, and who may make them.

It may import `admin.watch`, `admin.tokens` and what is below `admin`. Begin with `app`, then `calls`.
"""
