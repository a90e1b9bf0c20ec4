"""The contract of a policy store, as tests: derive a class from `StoreSuite` and give it your store.

::

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def open_again(self, tmp_path):
            return lambda: MyStore(tmp_path)
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_throttle.errors import ConflictError, NotFoundError
from spark_throttle.store.store import KINDS, NOTHING, Author, Change, Entry, Key, Kind, PolicyStore

ANN, BOB = Author("ann", "first customers"), Author("bob", "näher an der Grenze / „Grund“ \U0001f511")
HEAVY = '{"publish":{"weight":3}}'
ODD_NAMES = (
    "acme/a/b", "acme/..x", "..x/etc/passwd", "a.b.c/d", "acme/*", "%2e%2e/x", "ÄÖÜ/ß", "中文/命名", "\U0001f511/key",
    "a b/c\td", "quote'\"/x", "line\nbreak", "null\x00byte", "=SUM(1)", "-1", "null", "x" * 1024, "{}", "#", ":",
)  # fmt: skip


def put(name: str, body: str = "{}", kind: Kind = "namespace") -> Change:
    """Return a change that writes an entry."""
    return Change(kind, name, body)


def names(entries: list[Entry]) -> list[str]:
    """Return the names of entries."""
    return [entry.name for entry in entries]


class StoreSuite:
    """The tests; the fixture `open_again` returns a function that opens the same store, which begins empty."""

    @pytest.fixture
    def store(self, open_again: Callable[[], PolicyStore]) -> PolicyStore:
        """Return the store under test."""
        return open_again()

    def test_new_store_is_at_revision_0_and_empty(self, store: PolicyStore) -> None:
        assert store.revision() == 0
        assert store.history() == []
        assert list(store.scan()) == []
        assert all(store.page(kind) == [] for kind in KINDS)

    def test_commits_are_numbered_without_gaps(self, store: PolicyStore) -> None:
        made = [store.commit([put(f"n{i}")], expected_revision=i, author=ANN, at_ms=0) for i in range(5)]
        assert made == [1, 2, 3, 4, 5]
        assert store.revision() == 5

    def test_entry_reads_as_it_was_written_and_names_its_commit(self, store: PolicyStore) -> None:
        store.commit([put("acme/x", HEAVY)], expected_revision=0, author=ANN, at_ms=0)
        store.commit([put("acme/y")], expected_revision=1, author=ANN, at_ms=0)
        assert store.get("namespace", "acme/x") == Entry("namespace", "acme/x", HEAVY, 1)
        assert store.get("namespace", "acme/z") is None
        assert store.get("tenant", "acme/x") is None

    def test_author_time_and_reason_stay_with_the_revision(self, store: PolicyStore) -> None:
        store.commit([put("a"), put("b")], expected_revision=0, author=ANN, at_ms=1_795_266_764_070)
        store.commit([put("c")], expected_revision=1, author=BOB, at_ms=1_795_266_764_071)
        newest, first = store.history()
        assert (first.revision, first.at_ms, first.who, first.why, first.changes) == (
            1, 1_795_266_764_070, ANN.who, ANN.why, 2,
        )  # fmt: skip
        assert (newest.revision, newest.at_ms, newest.who, newest.why) == (2, 1_795_266_764_071, BOB.who, BOB.why)

    def test_door_and_authenticated_caller_stay_with_the_revision_whatever_the_author_is_called(
        self, store: PolicyStore, open_again: Callable[[], PolicyStore]
    ) -> None:
        who = "ann (token 0123456789ab)"
        authors = [
            Author(who, door="api", caller="token 0123456789ab"), Author(who, door="cli", caller="bob (uid 1000)"),
            Author(who),
        ]  # fmt: skip
        for number, author in enumerate(authors):
            store.commit([put(f"n{number}")], expected_revision=number, author=author, at_ms=0)
        for opened in (store, open_again()):
            assert [(each.who, each.door, each.caller) for each in opened.history()] == [
                (who, "library", None), (who, "cli", "bob (uid 1000)"), (who, "api", "token 0123456789ab"),
            ]  # fmt: skip

    def test_history_is_read_page_by_page(self, store: PolicyStore) -> None:
        for i in range(7):
            store.commit([put(f"n{i}")], expected_revision=i, author=ANN, at_ms=i)
        assert [each.revision for each in store.history(limit=3)] == [7, 6, 5]
        assert [each.revision for each in store.history(before=5, limit=3)] == [4, 3, 2]
        assert [each.revision for each in store.history(before=2, limit=3)] == [1]
        assert store.history(before=1) == []

    def test_commit_on_an_old_revision_is_a_conflict_and_changes_nothing(self, store: PolicyStore) -> None:
        store.commit([put("a")], expected_revision=0, author=ANN, at_ms=0)
        for expected in (0, 2):
            with pytest.raises(ConflictError) as caught:
                store.commit([put("b")], expected_revision=expected, author=BOB, at_ms=0)
            assert caught.value.found_revision == 1
        assert store.revision() == 1
        assert store.get("namespace", "b") is None

    def test_commit_of_several_entries_is_one_revision(self, store: PolicyStore) -> None:
        changes = [put("a"), put("g", kind="resource_group"), put("", HEAVY, kind="job")]
        store.commit(changes, expected_revision=0, author=ANN, at_ms=0)
        assert [(entry.kind, entry.revision) for entry in store.scan()] == [
            ("resource_group", 1), ("namespace", 1), ("job", 1),
        ]  # fmt: skip

    def test_what_administrators_gave_stays_with_the_entry(self, store: PolicyStore) -> None:
        first = [put("a"), Change("namespace", "b", HEAVY, NOTHING), Change("namespace", "c", "{}", HEAVY)]
        store.commit(first, expected_revision=0, author=ANN, at_ms=0)
        store.commit([Change("namespace", "b", "{}", HEAVY), put("c")], expected_revision=1, author=ANN, at_ms=0)
        assert [entry.given for entry in store.scan(at=1)] == [None, NOTHING, HEAVY]
        for found in (store.page("namespace"), list(store.scan())):
            assert [entry.given for entry in found] == [None, HEAVY, None]
        assert store.get("namespace", "b") == Entry("namespace", "b", "{}", 2, HEAVY)
        assert names(store.delegated()) == ["b"]
        assert names(store.delegated(at=1)) == ["b", "c"]
        assert store.delegated(at=0) == []
        assert [entry.given for entry in store.changed(after=0, until=2)] == [None, NOTHING, HEAVY, HEAVY, None]

    def test_removed_entry_is_gone_and_comes_back_when_written_again(self, store: PolicyStore) -> None:
        store.commit([put("a"), put("b")], expected_revision=0, author=ANN, at_ms=0)
        store.commit([Change("namespace", "a", None)], expected_revision=1, author=ANN, at_ms=0)
        assert store.get("namespace", "a") is None
        assert names(store.page("namespace")) == ["b"]
        store.commit([put("a")], expected_revision=2, author=ANN, at_ms=0)
        assert store.get("namespace", "a") == Entry("namespace", "a", "{}", 3)

    def test_every_revision_stays_readable(self, store: PolicyStore) -> None:
        store.commit([put("a", "{}")], expected_revision=0, author=ANN, at_ms=0)
        store.commit([put("a", HEAVY), put("b")], expected_revision=1, author=ANN, at_ms=0)
        store.commit([Change("namespace", "a", None)], expected_revision=2, author=ANN, at_ms=0)
        found = [[(e.name, e.body) for e in store.scan(at=at)] for at in range(4)]
        assert found == [[], [("a", "{}")], [("a", HEAVY), ("b", "{}")], [("b", "{}")]]
        assert store.get("namespace", "a", at=1) == Entry("namespace", "a", "{}", 1)
        assert names(store.page("namespace", at=2, limit=1)) == ["a"]

    def test_entries_are_found_together_as_one_by_one(self, store: PolicyStore) -> None:
        store.commit([put("a"), put("b"), put("a", kind="tenant")], expected_revision=0, author=ANN, at_ms=0)
        store.commit([put("a", HEAVY), Change("namespace", "b", None)], expected_revision=1, author=ANN, at_ms=0)
        keys: list[Key] = [("namespace", "a"), ("namespace", "b"), ("tenant", "a"), ("tenant", "b"), ("job", "")]
        for at in (None, 2, 1, 0):
            one_by_one = {key: entry for key in keys if (entry := store.get(*key, at=at)) is not None}
            assert store.find(keys, at=at) == one_by_one
        assert store.find([]) == {}

    def test_revision_that_is_not_there_is_refused(self, store: PolicyStore) -> None:
        for at in (1, -1):
            with pytest.raises(NotFoundError, match="the newest is 0"):
                store.get("job", "", at=at)

    def test_pages_follow_each_other_in_the_order_of_bytes(self, store: PolicyStore) -> None:
        wanted = sorted((f"ns{i:03d}" for i in range(25)), key=str.encode)
        store.commit([put(name) for name in reversed(wanted)], expected_revision=0, author=ANN, at_ms=0)
        found: list[str] = []
        while page := names(store.page("namespace", after=found[-1] if found else "", limit=10)):
            found += page
        assert found == wanted

    def test_page_of_a_group_has_its_members_only(self, store: PolicyStore) -> None:
        gold = '{"resource_group":"gold"}'
        group = put("gold", kind="resource_group")
        store.commit([group, put("a", gold), put("b"), put("c", gold)], expected_revision=0, author=ANN, at_ms=0)
        store.commit([put("c"), put("d", gold)], expected_revision=1, author=ANN, at_ms=0)
        assert names(store.page("namespace", resource_group="gold")) == ["a", "d"]
        assert names(store.page("namespace", resource_group="gold", after="a")) == ["d"]
        assert names(store.page("namespace", resource_group="gold", at=1)) == ["a", "c"]

    def test_entries_without_a_name_are_on_a_page_too(self, store: PolicyStore) -> None:
        store.commit([put("", HEAVY, kind="defaults")], expected_revision=0, author=ANN, at_ms=0)
        assert names(store.page("defaults")) == [""]

    @pytest.mark.parametrize("name", ODD_NAMES, ids=lambda name: ascii(name)[:20])
    def test_odd_names_are_kept_as_they_are(self, store: PolicyStore, name: str) -> None:
        store.commit([put("!"), put(name), put("\U0010ffff")], expected_revision=0, author=ANN, at_ms=0)
        assert store.get("namespace", name) == Entry("namespace", name, "{}", 1)
        assert names(store.page("namespace", after="!", limit=1)) == [name]
        assert names(store.page("namespace", after=name, limit=1)) == ["\U0010ffff"]

    def test_changed_gives_what_each_commit_wrote(self, store: PolicyStore) -> None:
        store.commit([put("a")], expected_revision=0, author=ANN, at_ms=0)
        store.commit([put("b")], expected_revision=1, author=ANN, at_ms=0)
        store.commit([Change("namespace", "a", None)], expected_revision=2, author=ANN, at_ms=0)
        assert list(store.changed(after=1, until=3)) == [
            Entry("namespace", "b", "{}", 2), Entry("namespace", "a", None, 3),
        ]  # fmt: skip
        assert list(store.changed(after=3, until=3)) == []

    def test_commit_is_seen_by_who_opened_the_store_before(self, open_again: Callable[[], PolicyStore]) -> None:
        first, second = open_again(), open_again()
        first.commit([put("a")], expected_revision=0, author=ANN, at_ms=0)
        assert second.revision() == 1
        second.commit([put("b")], expected_revision=1, author=BOB, at_ms=0)
        assert names(first.page("namespace")) == ["a", "b"]
        with pytest.raises(ConflictError):
            first.commit([put("c")], expected_revision=1, author=ANN, at_ms=0)

    def test_of_many_who_commit_on_one_revision_one_wins(self, open_again: Callable[[], PolicyStore]) -> None:
        stores = [open_again() for _ in range(8)]
        starts = threading.Barrier(len(stores))
        won: list[int] = []

        def race(number: int) -> None:
            starts.wait()
            try:
                stores[number].commit([put(f"n{number}")], expected_revision=0, author=ANN, at_ms=0)
            except ConflictError:
                return
            won.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert names(open_again().page("namespace")) == [f"n{won[0]}"]
        assert open_again().revision() == 1
