"""The measuring of processing time: what the functions of users and the sinks of ours use, charged to namespaces.

It may import `core`, `control`, `files` and `errors`. Start with `metered`, the wrapper of a user's function.
"""
