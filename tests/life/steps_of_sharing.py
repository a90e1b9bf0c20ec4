"""The rules of an exchange: other jobs come, want and die; registers are deleted, or put back; a job is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_throttle.errors import QueueOverflowError
from tests.life.drawing import Drawing, Rule, Traffic

if TYPE_CHECKING:
    from tests.life.life import Life

PEERS: Final = ("one", "two")


def _peer(d: Drawing) -> dict[str, Any]:
    return {
        "name": d.rng.choice(PEERS),
        "percent": d.rng.choice((0, 1, 30, 100, 100)),
        "after_ms": d.rng.choice((0, 5_000)),
    }


def _wants(life: Life, name: str, percent: int, after_ms: int) -> None:
    """Let a peer join, or want another part of the quotas."""
    if life.exchange is not None:
        life.want(name, percent)
        life.job.pass_time(after_ms)


def _peer_dies(d: Drawing) -> dict[str, Any]:
    return {"name": d.rng.choice(PEERS)}


def _dies(life: Life, name: str) -> None:
    """Let a peer die without a word."""
    peer = life.peers.pop(name, None)
    if life.exchange is not None and peer is not None:
        life.world.disturbances += 1
        life.exchange.leave(peer)


def _registers(d: Drawing) -> dict[str, Any]:
    return {"what": d.rng.choice(("kept", "put back", "all deleted", "the job's deleted", "the peers' deleted"))}


def _lost_registers(life: Life, what: str) -> None:
    """Delete registers, all or some, or put the exchange back to what was kept of it."""
    if life.exchange is None:
        return
    objects = life.exchange.objects
    life.world.disturbances += 1
    if what == "kept":
        life.kept_registers = dict(objects)
    elif what == "put back":
        objects.clear()
        objects.update(life.kept_registers)
    else:
        of_peers = {name for name in objects if name.partition(".")[0] in PEERS}
        gone = {"all deleted": set(objects), "the peers' deleted": of_peers}.get(what, set(objects) - of_peers)
        for name in gone:
            life.exchange.delete(name)


def _seat(d: Drawing) -> dict[str, Any]:
    files = d.rng.choice((["incarnation"], ["seat.json"], ["incarnation", "seat.json"]))
    return {"files": files, "is_register_gone": d.rng.random() < 0.5}


def _without_seat(life: Life, files: list[str], is_register_gone: bool) -> None:
    """Start the job from a checkpoint that knows less of its leases than the others do."""
    if life.exchange is None:
        return
    life.job.stop()
    for file in files:
        life.job.checkpoint.control.pop(file, None)
    if is_register_gone:
        _lost_registers(life, "the job's deleted")
    life.restart(0)


def _apart(d: Drawing) -> dict[str, Any]:
    return {"rows": d.rows(20), "triggers": d.rng.randint(1, 5)}


def _went_apart(life: Life, rows: Traffic, triggers: int) -> None:
    """Let the job leave the exchange, run for itself, and join again."""
    if life.exchange is None:
        return
    for is_sharing in (False, True):
        life.job.is_sharing = is_sharing
        life.restart(0)
        for _ in range(triggers):
            life.offer(rows)
            life.trigger(1_000)


def _copy(d: Drawing) -> dict[str, Any]:
    return {"is_elsewhere": d.rng.random() < 0.6, "rows": d.rows(50), "triggers": d.rng.randint(2, 25)}


def _copied(life: Life, is_elsewhere: bool, rows: Traffic, triggers: int) -> None:
    """Run a copy of the job with a source and sinks of its own, beside it; where it cannot tell, as the same member."""
    if life.exchange is None or life.job.is_down:
        return
    copy = life.job.clone(with_sinks=True, is_elsewhere=is_elsewhere)
    life.world.disturbances += 1
    copy.restart()
    for _ in range(triggers):
        copy.offer([(name, size) for name, size, count in rows for _ in range(count)])
        try:
            copy.trigger(0)
        except QueueOverflowError:  # as its bounds say
            break
        life.offer(rows)
        life.world.disturbances += not is_elsewhere  # whoever was superseded has nothing
        life.trigger(1_000)
    copy.stop()
    if not is_elsewhere:
        life.restart(0)


def _settled(d: Drawing) -> dict[str, Any]:
    return {"rows": [(name, size, 30) for name, size, _ in d.rows(2)], "triggers": d.rng.randint(15, 30)}


def _settles(life: Life, rows: Traffic, triggers: int) -> None:
    """Let leases be kept for a while: when a job should have its floor."""
    if life.exchange is not None:
        for _ in range(triggers):
            life.offer(rows)
            life.trigger(1_000)


RULES_OF_SHARING: Final[dict[str, Rule]] = {
    "peer": (3, _peer, _wants),
    "peer_dies": (1, _peer_dies, _dies),
    "registers": (2, _registers, _lost_registers),
    "seat": (1, _seat, _without_seat),
    "apart": (1, _apart, _went_apart),
    "copy": (1, _copy, _copied),
    "settle": (3, _settled, _settles),
}
"""The rules of sharing, by name."""
