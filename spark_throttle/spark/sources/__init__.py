"""The control source: a streaming source whose rows are grants, and the plane that plans them.

It may import `control` and all rooms of `spark` but `sinks`. Begin with `control_source`.
"""
