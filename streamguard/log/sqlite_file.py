"""The file of a log: where it may lie, how it is opened, and what its troubles are called.

It is in write-ahead mode, so that readers and the writer do not wait for each other; that needs memory shared by all
its processes, which no network file system gives. It is made readable for its owner only, and what SQLite puts beside
it gets the same mode.

A text that was purged must be gone. `secure_delete` overwrites what is deleted, but not what was moved: when SQLite
splits a page of a table, the half that went to another page stays behind, in bytes that belong to nobody. So text is
never where a split can come: `sqlite_blocks` keeps it in pages of its own.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Final, Literal

import attrs

from streamguard.log import sqlite_clock as clock
from streamguard.log.base import LogUnavailable
from streamguard.log.sqlite_blocks import PAGE_SIZE

__all__ = ["BUSY", "Durability", "LogFile", "Opened", "file_system", "refusal", "unavailable"]

Durability = Literal["process", "power"]

BUSY: Final = 2.0  # seconds that somebody else may keep the file locked
_APPLICATION: Final = 0x53474C47  # in the file's header: "SGLG"
_VERSION: Final = 2

_SCHEMA: Final = """
CREATE TABLE streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT, sid TEXT NOT NULL UNIQUE, created REAL NOT NULL,
    name BLOB, principal BLOB, holds BLOB UNIQUE, info BLOB NOT NULL);
CREATE INDEX streams_by_name ON streams (name) WHERE name IS NOT NULL;
CREATE INDEX streams_by_principal ON streams (principal) WHERE principal IS NOT NULL;
CREATE TABLE tails (
    id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, seq INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    crc INTEGER NOT NULL, status TEXT, until REAL NOT NULL, touched REAL NOT NULL,
    first_seq INTEGER NOT NULL, first_offset INTEGER NOT NULL, first_crc INTEGER NOT NULL,
    cancelled INTEGER NOT NULL, signals INTEGER NOT NULL, crashes INTEGER NOT NULL);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY, stream INTEGER NOT NULL, seq INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    crc INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX blocks_in_order ON blocks (stream, seq);
CREATE TABLE checkpoints (
    id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, "offset" INTEGER NOT NULL, crc INTEGER NOT NULL, state BLOB NOT NULL);
CREATE TABLE signals (
    id INTEGER NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (id, number)) WITHOUT ROWID;
CREATE TABLE doomed (id INTEGER PRIMARY KEY);
CREATE TABLE clock (id INTEGER PRIMARY KEY, start TEXT NOT NULL, shift REAL NOT NULL);
"""

# What a reader of the application's log should be told, by what SQLite's message contains.
_TROUBLES: Final = (
    ("locked", f"another process kept the file locked for more than {BUSY:g} s"),
    ("disk is full", "no room: the disk is full, or the file has reached max_bytes"),
    ("readonly", "the file, or its directory, is read-only for this process"),
    ("disk I/O", "the disk, or the system, refuses"),
    ("malformed", "the file is damaged"),
    ("not a database", "the file is damaged, or is no database"),
    ("unable to open", "the file cannot be opened: its directory must exist and be writable"),
)

# Types of `/proc/self/mountinfo` whose files several machines may see, or whose locks and shared memory are not real.
_NETWORK: Final = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf",
})  # fmt: skip
_LOCAL_FUSE: Final = frozenset({"bindfs", "ext2", "fuse-overlayfs", "gocryptfs", "mergerfs", "ntfs-3g", "encfs"})


def unavailable(exc: BaseException) -> LogUnavailable:
    """What a caller is told of an error of SQLite's or of the system's."""
    if isinstance(exc, LogUnavailable):
        return exc
    text = str(exc)
    why = next((words for part, words in _TROUBLES if part in text), None)
    found = LogUnavailable(f"{why} ({text})" if why else f"{type(exc).__name__}: {text}")
    found.__cause__ = exc
    return found


def file_system(path: str, mounts: str) -> str:
    """The type of the file system that holds an absolute path, by the text of `/proc/self/mountinfo`; "" if unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        # The kernel writes a blank, a tab, a newline and a backslash of a path in octal.
        mounted = fields[4].encode("latin-1", "replace").decode("unicode_escape").encode("latin-1", "replace")
        point = os.fsdecode(mounted).rstrip("/")
        if (path == point or path.startswith(point + "/")) and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind


def refusal(path: str) -> str | None:
    """Why no log can lie at an absolute path, or None."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # no Linux: nothing is known of its mounts
    kind = file_system(path, mounts)
    fuse, _, name = kind.partition(".")
    if kind not in _NETWORK and not (fuse == "fuse" and name and name not in _LOCAL_FUSE):
        return None
    return (
        f"{path} lies on a network file system ({kind}), where SQLite loses data: put the log on a local disk, "
        "or use RedisLog for processes on several machines"
    )


@attrs.define(eq=False)
class Opened:
    """A connection, of the thread that opened it. `file` says which file it is, `shift` what its clock adds."""

    connection: sqlite3.Connection
    file: tuple[int, int]
    shift: float

    def now(self) -> float:
        """Seconds on the file's clock."""
        return clock.uptime() + self.shift

    def close(self) -> None:
        try:
            self.connection.close()
        except sqlite3.Error:
            pass  # a disk that fails: there is nothing more to do with this connection


@attrs.frozen
class LogFile:
    """Where it is, and how it is written. `max_bytes` is of the file without its write-ahead log."""

    path: str
    durability: Durability
    max_bytes: int

    def open(self) -> Opened:
        """A connection of the calling thread's. Raises LogUnavailable, sqlite3.Error and OSError."""
        self._make()
        connection = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
        try:
            self._prepare(connection)
            return Opened(connection, self.identity(), clock.set_clock(connection))
        except BaseException:
            connection.close()
            raise

    def identity(self) -> tuple[int, int]:
        """Which file stands at the path now; (0, 0) for none."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return (0, 0)
        return (found.st_dev, found.st_ino)

    def ahead(self) -> int:
        """Bytes of the write-ahead log."""
        try:
            return os.stat(self.path + "-wal").st_size
        except FileNotFoundError:
            return 0

    def _make(self) -> None:
        """An empty file that only its owner may read, unless there is one.

        An existing one is not opened here: to close it again would drop all locks that this process has on it.
        """
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), 0o600))
        except FileExistsError:
            pass

    def _prepare(self, connection: sqlite3.Connection) -> None:
        execute = connection.execute
        execute(f"PRAGMA page_size = {PAGE_SIZE}")
        version = self._version(connection)
        mode = _write_ahead(connection)
        if mode != "wal":
            raise LogUnavailable(f"SQLite cannot write ahead in {self.path}: its journal mode stays {mode!r}")
        execute(f"PRAGMA synchronous = {'FULL' if self.durability == 'power' else 'NORMAL'}")
        execute("PRAGMA secure_delete = ON")
        execute("PRAGMA temp_store = MEMORY")
        execute("PRAGMA cell_size_check = ON")
        execute("PRAGMA wal_autocheckpoint = 0")  # the writer does it, in a way that readers cannot put off
        execute(f"PRAGMA max_page_count = {max(1, self.max_bytes // PAGE_SIZE)}")
        if version == 0:
            self._create(connection)

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of the schema, 0 for an empty file. Raises LogUnavailable for one that is not ours."""
        # In this order: another thread or process may be making the tables meanwhile, and signs them in the same step.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != _APPLICATION and (application or version or tables):
            raise LogUnavailable(f"{self.path} is a database of something else: give the log a file of its own")
        if version > _VERSION:
            raise LogUnavailable(
                f"{self.path} was written by a newer streamguard (schema {version}; this one reads {_VERSION}): "
                "upgrade this process, or give it another file"
            )
        if 0 < version < _VERSION:  # of a program that was never released
            raise LogUnavailable(
                f"{self.path} was written by an older streamguard (schema {version}; this one reads {_VERSION}): "
                "remove it, or give this process another file"
            )
        return int(version)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if self._version(connection) == 0:  # nobody was faster
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Switch to write-ahead mode. SQLite does not wait for its lock here, as it does elsewhere."""
    deadline = time.monotonic() + BUSY
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.005)  # in a thread of ours, never on an event loop
