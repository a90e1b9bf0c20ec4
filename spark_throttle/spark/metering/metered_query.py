"""The query that a throttle's metered functions charge.

A function is wrapped before the query starts, and is told where to write its charges when Spark packs it for the
executors, which is after the query has got its control directory.
"""

from __future__ import annotations

from spark_throttle.errors import ConfigurationError


class MeteredQuery:
    """The control directory of the only query of a throttle that has metered functions."""

    def __init__(self, control_path: str | None = None) -> None:
        self._control_paths = [] if control_path is None else [control_path]
        self.is_metered = False
        """Whether any function was metered for it."""

    def begin(self, control_path: str) -> None:
        """Take down that a query of the throttle is about to start.

        Raises
        ------
        ConfigurationError
            If functions are metered that would not know which of two queries to charge.
        """
        if control_path not in self._control_paths:
            self._control_paths.append(control_path)
        if self.is_metered:
            self._check()

    @property
    def control_path(self) -> str:
        """The query's control directory.

        Raises
        ------
        ConfigurationError
            If no query has begun, or several have.
        """
        self._check()
        if not self._control_paths:
            raise ConfigurationError(
                "a metered function was given to Spark before its query was: meter what runs after the throttle, as in "
                "foreachBatch or on the rows of apply; rows that were not yet admitted may wait or be rejected"
            )
        return self._control_paths[0]

    def _check(self) -> None:
        if len(self._control_paths) > 1:
            raise ConfigurationError(
                f"a throttle with metered functions has the queries of {self._control_paths[:2]}, and a function "
                f"cannot know which of them to charge; give each query a Throttle of its own"
            )
