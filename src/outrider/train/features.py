"""Stage two: what the target computes over its own answers, in shards on disk.

Of each row are kept the outputs of the layers that the head reads, the normed last hidden state, from which the law
over any reduced vocabulary is one product away, and what that reduction loses: the log of the whole law's sum and its
likeliest token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.errors import ConfigError
from outrider.paths import write_whole
from outrider.target.batch import Span
from outrider.target.model import Target
from outrider.train.answers import Sample

Progress = Callable[[int, int], None]  # done, total
_ROWS = 256  # of one forward: their logits are vocabulary wide
SHARD = 65536  # rows of a shard, about
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Text:
    """One text's rows. tokens int [rows]; features [rows, layers * hidden], last [rows, hidden] half precision;
    log_sum float32 [rows]; best int [rows]; the first ``num_prompt_tokens`` tokens are the prompt's."""

    tokens: Tensor
    features: Tensor
    last: Tensor
    log_sum: Tensor
    best: Tensor
    num_prompt_tokens: int


class FeatureStore:
    """A folder of shards and its manifest, which lists only shards that are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = folder / "manifest.json"
        self.facts: dict[str, Any] = {"shards": []}
        if self._manifest.exists():
            self.facts = json.loads(self._manifest.read_text(encoding="utf-8"))

    @property
    def num_texts(self) -> int:
        """Texts in whole shards."""
        return sum(shard["texts"] for shard in self.facts["shards"])

    @property
    def num_rows(self) -> int:
        """Rows in whole shards."""
        return sum(shard["rows"] for shard in self.facts["shards"])

    def describe(self, **facts: Any) -> None:
        """Say what the rows are of. Raises ConfigError when the folder holds those of something else."""
        for key, value in facts.items():
            known = self.facts.setdefault(key, value)
            if known != value:
                raise ConfigError(f"{self.folder} holds features with {key}={known!r}, not {value!r}; take a new --out")

    def append(self, texts: Sequence[Text]) -> None:
        """Write one shard; it counts once the manifest names it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"shard-{len(self.facts['shards']):05d}.safetensors"
        path = self.folder / name
        save_file(
            {
                "tokens": torch.cat([text.tokens for text in texts]),
                "features": torch.cat([text.features for text in texts]),
                "last": torch.cat([text.last for text in texts]),
                "log_sum": torch.cat([text.log_sum for text in texts]),
                "best": torch.cat([text.best for text in texts]),
                "lengths": torch.tensor([len(text.tokens) for text in texts]),
                "prompts": torch.tensor([text.num_prompt_tokens for text in texts]),
            },
            path,
        )
        rows = sum(len(text.tokens) for text in texts)
        self.facts["shards"].append({"file": name, "texts": len(texts), "rows": rows, "sha256": _sha256(path)})
        write_whole(self._manifest, json.dumps(self.facts, indent=1))

    def verify(self) -> None:
        """Raise ConfigError for a shard that is missing or not as it was written."""
        for shard in self.facts["shards"]:
            try:
                same = _sha256(self.folder / shard["file"]) == shard["sha256"]
            except OSError:
                same = False
            if not same:
                raise ConfigError(f"{self.folder / shard['file']} is missing or damaged: delete {self.folder}")

    def lengths(self) -> list[int]:
        """Rows of every text, in order."""
        return self.reader().lengths

    def reader(self) -> Reader:
        """Access to single texts."""
        return Reader(self.folder, [shard["file"] for shard in self.facts["shards"]])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Reader:
    """Texts by number, read from memory-mapped shards."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._files: list[Any] = [safe_open(folder / name, "pt") for name in names]
        self._places: list[tuple[int, int, int, int]] = []  # file, first row, rows, prompt tokens
        for number, file in enumerate(self._files):
            first = 0
            for rows, prompt in zip(
                file.get_tensor("lengths").tolist(), file.get_tensor("prompts").tolist(), strict=True
            ):
                self._places.append((number, first, rows, prompt))
                first += rows

    @property
    def lengths(self) -> list[int]:
        """Rows of every text, in order."""
        return [rows for _, _, rows, _ in self._places]

    @property
    def prompts(self) -> list[int]:
        """Prompt tokens of every text, in order."""
        return [prompt for _, _, _, prompt in self._places]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Text:
        number, first, rows, prompt = self._places[index]
        file = self._files[number]
        parts = {
            name: file.get_slice(name)[first : first + rows]
            for name in ("tokens", "features", "last", "log_sum", "best")
        }
        return Text(**parts, num_prompt_tokens=prompt)


def row_bytes(hidden: int, layers: int) -> int:
    """Bytes of a row on disk: features and last state in half precision, token, log of the sum, likeliest token."""
    return 2 * hidden * (layers + 1) + 12


def extract(
    target: Target, samples: Sequence[Sample], layers: Sequence[int], store: FeatureStore, progress: Progress
) -> None:
    """Compute the rows that ``store`` lacks; samples are taken in order."""
    done = store.num_texts
    total = sum(len(sample.token_ids) for sample in samples)
    rows = sum(len(sample.token_ids) for sample in samples[:done])
    shard: list[Text] = []
    held = 0
    progress(rows, total)
    for text in _texts(target, samples[done:], layers):
        shard.append(text)
        held += len(text.tokens)
        rows += len(text.tokens)
        progress(rows, total)
        if held >= SHARD:
            store.append(shard)
            shard, held = [], 0
    if shard:
        store.append(shard)


def _texts(target: Target, samples: Sequence[Sample], layers: Sequence[int]) -> Iterator[Text]:
    taps = sorted({*layers, target.num_layers - 1})
    for sample in samples:
        slots = -(-len(sample.token_ids) // _BLOCK) * _BLOCK
        storage = target.new_storage(slots, _BLOCK)
        yield _one(target, sample, layers, taps, storage, torch.arange(slots, dtype=torch.int32))


def _one(
    target: Target, sample: Sample, layers: Sequence[int], taps: Sequence[int], storage: KVStorage, context: Tensor
) -> Text:
    hidden, log_sum, best = [], [], []
    for start in range(0, len(sample.token_ids), _ROWS):
        chunk = sample.token_ids[start : start + _ROWS]
        output = target.forward([Span(chunk, context, start)], storage, taps)
        assert output.hidden is not None
        hidden.append(output.hidden)
        log_sum.append(output.logits.logsumexp(-1))
        best.append(output.logits.argmax(-1))
    rows = torch.cat(hidden)
    width = rows.shape[1] // len(taps)
    parts = {layer: rows[:, place * width : (place + 1) * width] for place, layer in enumerate(taps)}
    return Text(
        tokens=torch.tensor(sample.token_ids, dtype=torch.int32),
        features=torch.cat([parts[layer] for layer in layers], dim=1).half(),
        last=target.normed(parts[target.num_layers - 1]).half(),
        log_sum=torch.cat(log_sum),
        best=torch.cat(best).to(torch.int32),
        num_prompt_tokens=sample.num_prompt_tokens,
    )
