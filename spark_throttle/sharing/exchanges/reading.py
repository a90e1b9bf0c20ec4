"""Many objects of an exchange, read several at a time: one read of an object store takes tens of milliseconds.

A job whose visits take longer than a tenth of a lease can trust nothing that they found, so its share never grows. Read
one after another, a hundred registers on an object store take as long as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_throttle.sharing.exchanges.exchange import Exchange

_OBJECTS_A_THREAD: Final = 4
"""For fewer objects, a thread costs more than it saves."""


def read_all(exchange: Exchange, names: Sequence[str]) -> list[bytes | BaseException | None]:
    """Return the objects in the order of their names: `None` where there is none, and the error where one was raised.

    The threads are daemons: a read that never ends does not keep the process from ending.
    """
    found: list[bytes | BaseException | None] = [None] * len(names)
    places: SimpleQueue[int] = SimpleQueue()
    for place in range(len(names)):
        places.put(place)

    def read() -> None:
        while True:
            try:
                place = places.get_nowait()
            except Empty:
                return
            try:
                found[place] = exchange.read(names[place])
            except BaseException as error:  # noqa: BLE001 - the caller decides what each error means
                found[place] = error

    more = min(exchange.reads_at_once, len(names) // _OBJECTS_A_THREAD) - 1
    threads = [Thread(target=read, name="throttle-exchange-read", daemon=True) for _ in range(more)]
    for thread in threads:
        thread.start()
    read()
    for thread in threads:
        thread.join()
    return found
