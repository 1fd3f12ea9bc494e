"""A datastore: texts of token ids in memory-mapped files, with every position sorted by the context that ends at it.

A datastore is a folder that ``outrider index build`` writes:

    header.json           version, vocabulary, tokenizer fingerprint, one entry a segment, checksums
    segment-0000.tokens   the documents' ids backwards, big-endian, each document between two boundaries
    segment-0000.order    offsets of all ids but each document's last (uint32, little-endian), sorted by the ids that
                          stand from there on

A suffix array of the text read backwards lists positions by their contexts, so that the occurrences of a context are
one interval of the list (``context_index.py`` does the same for a text that grows; ``retrieval.py`` searches this one).
Big-endian ids compare as bytes in the order of the ids. An id takes two bytes where the vocabulary has fewer than
65,536 entries, else four; the largest value of that width is the boundary. Segments are independent of one another:
more of them may be added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError

FORMAT, VERSION = "outrider datastore", 1
HEADER = "header.json"
VERIFIED_BYTES = 1 << 30  # a datastore of up to this size is read and compared with its checksums when it is opened
_WORKING = 1 << 22  # bytes that are hashed at a time


class SegmentInfo(BaseModel):
    """One segment: its name, size, where its documents come from, and the SHA-256 of its two files."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^segment-\d{4,}$")
    num_tokens: int = Field(ge=1)  # without boundaries
    num_documents: int = Field(ge=1)
    sources: list[str]
    tokens_bytes: int
    tokens_sha256: str
    order_sha256: str

    @property
    def files(self) -> list[tuple[str, int, str]]:
        """Name, size and SHA-256 of each file."""
        return [
            (f"{self.name}.tokens", self.tokens_bytes, self.tokens_sha256),
            (f"{self.name}.order", 4 * (self.num_tokens - self.num_documents), self.order_sha256),
        ]


class Header(BaseModel):
    """What ``header.json`` holds, but for its checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(ge=1)
    fingerprint: str  # of the tokenizer
    model: str  # whose tokenizer it was, as the user named it
    segments: list[SegmentInfo] = []

    @property
    def token_type(self) -> np.dtype[Any]:
        """Type of an id in the files."""
        return np.dtype(">u2" if self.vocab_size < 1 << 16 else ">u4")

    @property
    def boundary(self) -> int:
        """The value between documents."""
        return int(np.iinfo(self.token_type).max)

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return sum(segment.num_tokens for segment in self.segments)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return sum(segment.num_documents for segment in self.segments)

    @property
    def num_bytes(self) -> int:
        """Size of the segments' files."""
        return sum(size for segment in self.segments for _, size, _ in segment.files)

    def dumps(self) -> str:
        """The header as the text of ``header.json``."""
        values = {"format": FORMAT, "version": VERSION, **self.model_dump()}
        return json.dumps({**values, "checksum": _checksum(values)}, indent=2, ensure_ascii=False) + "\n"


def check(config: SpeculativeConfig) -> None:
    """Raise ConfigError when a datastore of ``config`` is missing or damaged, as ``read_header`` finds it."""
    for path in config.datastores:
        read_header(Path(path))


def read_header(path: Path) -> Header:
    """The header of the datastore at ``path``; the files of its segments have the sizes that it gives.

    Raises ConfigError when there is none, it is of another version, or something of it is missing or damaged.
    """
    if not path.exists():
        raise ConfigError(f"datastore {path}: there is none; make it with `outrider index build {path} CORPUS...`")
    if not (path / HEADER).is_file():
        raise ConfigError(f"datastore {path} is none: it holds no {HEADER}; name one that `outrider index build` wrote")
    try:
        values = json.loads((path / HEADER).read_text(encoding="utf-8"))
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ConfigError(f"datastore {path}: its {HEADER} is that of something else; name another folder")
        if values.get("version") != VERSION:
            raise ConfigError(
                f"datastore {path}: it has version {values.get('version')} and this program reads version {VERSION}; "
                "build it again with `outrider index build`"
            )
        checksum = values.pop("checksum", None)
        if checksum != _checksum({"format": FORMAT, **values}):
            raise _damaged(path, HEADER, "its checksum differs")
        del values["version"]
        header = Header(**values)
    except (OSError, ValueError, ValidationError) as error:
        if isinstance(error, ConfigError):
            raise
        raise _damaged(path, HEADER, "it cannot be read") from None
    for segment in header.segments:
        for name, size, _ in segment.files:
            file = path / name
            if not file.is_file() or file.stat().st_size != size:
                raise _damaged(path, name, "it is missing or has another size")
    return header


def verify(path: Path, header: Header, progress: Callable[[int, int], None] | None = None) -> None:
    """Compare every file with its checksum; ``progress`` is told bytes done and in all. Raises ConfigError."""
    done = 0
    for segment in header.segments:
        for name, _, expected in segment.files:
            digest = hashlib.sha256()
            with (path / name).open("rb") as file:
                while part := file.read(_WORKING):
                    digest.update(part)
                    done += len(part)
                    if progress is not None:
                        progress(done, header.num_bytes)
            if digest.hexdigest() != expected:
                raise _damaged(path, name, "its checksum differs")


class Segment:
    """A memory-mapped segment. ``ids``: its documents backwards [num_ids]; ``order``: sorted offsets into them."""

    def __init__(self, path: Path, info: SegmentInfo, header: Header) -> None:
        ids, order = (path / name for name, _, _ in info.files)
        self.boundary = header.boundary
        self.ids = np.asarray(np.memmap(ids, dtype=header.token_type, mode="r"))
        self.order = np.asarray(np.memmap(order, dtype="<u4", mode="r"))
        self.bytes, self.places = self.ids.view(np.uint8).data, self.order.data  # the same, quick to read one by one


class Datastore:
    """An open datastore. ``header``: what is in it; ``segments``: its texts."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self.segments = [Segment(path, info, header) for info in header.segments]

    @classmethod
    def open(cls, path: Path, fingerprint: str | None = None) -> Self:
        """Open ``path`` for a tokenizer of that ``fingerprint`` (None: whatever it is).

        Raises ConfigError when it is missing, damaged, or of another tokenizer. Of more than ``VERIFIED_BYTES`` only
        header and sizes are checked here; ``outrider index info --verify`` reads the rest.
        """
        header = read_header(path)
        if fingerprint is not None and header.fingerprint != fingerprint:
            raise ConfigError(
                f"datastore {path}: it holds ids of another tokenizer (that of {header.model}); build one for this "
                "model with `outrider index build OUT CORPUS... --model MODEL`"
            )
        if header.num_bytes <= VERIFIED_BYTES:
            verify(path, header)
        return cls(path, header)

    def encode(self, tokens: Sequence[int]) -> bytes:
        """The last tokens of a sequence as a context to look for; an id that the files cannot hold ends it."""
        backwards = tokens[::-1]
        ours = self.header.vocab_size
        length = next((i for i, token in enumerate(backwards) if not 0 <= token < ours), len(backwards))
        return np.array(backwards[:length], dtype=self.header.token_type).tobytes()


def _checksum(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _damaged(path: Path, name: str, what: str) -> ConfigError:
    return ConfigError(f"datastore {path}: {name} is damaged ({what}); build it again with `outrider index build`")
