"""The control source: a streaming source whose rows are grants, and the control plane that plans them.

It may import `status`, `control` and every subpackage of `spark` except `sinks`. Start with `control_source`.
"""
