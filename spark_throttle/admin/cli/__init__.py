"""The commands that need neither Spark nor the API: a module for each group of them.

It may import `admin.tokens` and the layers below `admin`; each command imports what it needs when it runs. Start with
`options`; `command_line` puts the groups together.
"""
