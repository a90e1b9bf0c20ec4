"""HTTP on one connection: uvicorn's protocol, with a time limit on everything a client can keep the server waiting for.

uvicorn limits only the time between two requests. Here each of these has a limit (`ServerBounds`): the first byte, with
TLS's handshake; the headers, from their first byte to their last; the body, likewise; and the client's taking of the
answer. A client that sends a byte at a time gains nothing. What the server refuses by itself is a problem document, as
every error of the API is.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from spark_throttle.admin.api.answers import last_answer
from spark_throttle.admin.api.server.connections import Connection, Connections, ServerBounds

if TYPE_CHECKING:
    from uvicorn import Config
    from uvicorn.server import ServerState


LINGER_SECONDS: Final = 1.0
"""How long a connection stays open, unheard, for its client to read the last answer."""

MOST_HEADER_BYTES: Final = 64 * 1024

_Phase: TypeAlias = Literal["idle", "headers", "body", "working"]
_REASONS: Final = {
    400: "the request is not HTTP/1.1",
    431: f"the request line and the headers are larger than {MOST_HEADER_BYTES} bytes",
    501: "the request has a Transfer-Encoding other than chunked",
}


class ConnectionProtocol(H11Protocol):
    """One connection.

    Parameters
    ----------
    bounds
        The time limits.
    connections
        Where the connection is counted; its listener has admitted it.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        bounds: ServerBounds,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._connections = connections
        self._connection: Connection | None = None
        self._armed: tuple[_Phase, object] = ("idle", None)
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._is_over = False
        # uvicorn hands a copy of it to the application with each request; the gate says there whose connection it is.
        self.app_state = {**app_state, "protocol": self}

    @property
    def is_gone(self) -> bool:
        """Whether the client of the request that is worked on has left."""
        return self.cycle.disconnected

    def recognise(self) -> None:
        """Say that a valid token came on this connection."""
        if self._connection is not None:
            self._connection.is_known = True

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to wait for the first byte."""
        super().connection_made(transport)
        self._connection = self._connections.find(transport.get_extra_info("peername"))
        if self._connection is None:
            transport.abort()
            return
        if self._connection.timer is not None:
            self._connection.timer.cancel()
        self._connection.leave = self._leave
        self._wait(self._bounds.first_byte_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._is_over = True
        for timer in (self._deadline, self._taking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what arrived, unless the last answer was given."""
        if self._is_over:
            return
        super().data_received(data)
        self._follow()

    def pause_writing(self) -> None:
        """Begin to wait for the client to take its answer."""
        super().pause_writing()
        self._expect_taking()  # uvicorn waits for it before the next answer

    # ---- what uvicorn calls

    def on_response_complete(self) -> None:
        """Wait for the answer to be taken, and for the next request."""
        super().on_response_complete()
        self._expect_taking()
        self._follow()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says more
        """Refuse what is not HTTP."""
        # uvicorn calls it while it handles h11's error, which knows the status but may repeat the request's bytes.
        status = getattr(sys.exception(), "error_status_hint", 400)
        status = status if status in _REASONS else 400
        self._refuse(status, _REASONS[status])

    def shutdown(self) -> None:
        """End with the server: a request that has arrived is answered, and no other is waited for."""
        if self._is_over:
            return
        if self._phase() in {"headers", "body"}:
            self._refuse(503, "the server is ending; the request had not arrived as a whole, and nothing was changed")
            return
        super().shutdown()
        if self.transport.is_closing():
            self._abort_soon()

    # ---- time limits

    def _phase(self) -> _Phase:
        """Return what happens on this connection."""
        if self.conn.their_state is h11.IDLE:
            return "headers" if self.conn.trailing_data[0] else "idle"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "idle" if self._answered() else "working"

    def _answered(self) -> bool:
        """Whether there is no request without a complete answer."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves out that there is none yet
        return cycle is None or cycle.response_complete

    def _follow(self) -> None:
        """Set the time limit of what happens now; nothing changes while the same goes on, however much arrives."""
        if self._is_over or self._connection is None:
            return
        phase = self._phase()
        if self._armed[0] == phase and self._armed[1] is self.cycle:
            return
        self._armed = (phase, self.cycle)
        self._connection.has_begun = phase in {"headers", "body"}
        (self._connections.works if phase == "working" else self._connections.waits)(self._connection)
        if phase == "headers":
            self._wait(self._bounds.headers_seconds)
        elif phase == "body":
            self._wait(self._bounds.body_seconds)
        elif phase == "idle":
            self._wait(self._bounds.idle_seconds)
        elif self._deadline is not None:
            self._deadline.cancel()

    def _wait(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._late, seconds)

    def _late(self, seconds: float) -> None:
        phase = self._phase()
        if phase == "idle":
            self._close()
        else:
            self._refuse(408, f"the {phase} of the request did not arrive within {seconds:g} s")

    def _expect_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
        if self.transport.get_write_buffer_size():
            self._taking = self.loop.call_later(self._bounds.answer_seconds, self._still_taking)

    def _still_taking(self) -> None:
        if self.transport.get_write_buffer_size():
            self._abort()

    # ---- ends

    def _leave(self) -> None:
        """Make room for another connection."""
        if self._is_over:
            return
        if self._phase() in {"headers", "body"}:
            self._refuse(503, "the server has too many connections, and this one kept it waiting")
        else:
            self._close()

    def _refuse(self, status: int, detail: str) -> None:
        """Answer with a problem, unless an answer has begun, and end the connection."""
        if self.transport.is_closing() or self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self._close()
            return
        self._end()
        self.transport.write(last_answer(status, detail, self.scheme or "http"))
        # If the socket were closed while bytes arrive, the kernel would reset the connection, and the client would lose
        # the answer. TLS has no half-closed connection: there the answer may be lost.
        if self.transport.can_write_eof():
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()
        self._abort_soon()

    def _close(self) -> None:
        """End the connection without an answer."""
        self._end()
        if self.transport.get_write_buffer_size():
            self._abort()
        else:
            self.transport.abort()

    def _end(self) -> None:
        """Listen no more, and tell the application that its client has left."""
        self._is_over = True
        if not self._answered():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self._deadline is not None:
            self._deadline.cancel()

    def _abort_soon(self) -> None:
        self.loop.call_later(LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        """Close without waiting for the client, and drop what the kernel still holds for it (megabytes, at most)."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
