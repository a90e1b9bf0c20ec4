"""The control source: a streaming source whose rows are control rows, and the control plane that makes their epochs.

It may import `status`, `control` and every subpackage of `spark` except `sinks`. Start with `control_source`.
"""
