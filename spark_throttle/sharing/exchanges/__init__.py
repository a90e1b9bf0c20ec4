"""Where jobs leave their reports: named objects in a directory, or in a Delta table.

It may import `files`, and knows nothing of the content of reports. Start with `exchange`, the protocol.
"""
