"""A GGUF file with its matrices in Q8_0, made from a GGUF file in any format: the weights that all engines race on.

Metadata and tokenizer are the source's. Vectors (norms, biases) are float32. Where the source holds an embedding and a
head that come from one matrix, both are replaced by the head, which files quantise more finely; the new file is tied.
Q8_0: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, blocks of 32 values with one float16 scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
SAME_MATRIX = 0.3  # relative distance below which two quantised matrices come from one
OWN_FIELDS = ("general.architecture", "general.file_type", "general.quantization_version")  # the writer sets them
BLOCK = 32
Q8_0 = GGMLQuantizationType.Q8_0


def quantise(source: Path, out: Path) -> Path:
    """Write ``source`` with Q8_0 matrices to ``out``; the file appears under its name when it is complete."""
    reader = GGUFReader(source)
    part = out.with_name(f"{out.name}.part")
    writer = GGUFWriter(part, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    for name, tensor in _tensors(reader).items():
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if values.ndim > 1 and values.shape[-1] % BLOCK == 0:
            writer.add_tensor(name, quantize(values, Q8_0), raw_dtype=Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return part.rename(out)


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name in OWN_FIELDS or name.startswith("GGUF."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)


def _tensors(reader: GGUFReader) -> dict[str, Any]:
    """Tensors by the name that they get; a tied pair is the head under the embedding's name."""
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if HEAD in tensors and _same_matrix(tensors[EMBEDDING], tensors[HEAD]):
        tensors[EMBEDDING] = tensors.pop(HEAD)
    return tensors


def _same_matrix(embedding: Any, head: Any) -> bool:
    if list(embedding.shape) != list(head.shape):
        return False
    rows = np.linspace(0, len(head.data) - 1, 256).astype(int)
    first, second = (dequantize(tensor.data[rows], tensor.tensor_type) for tensor in (embedding, head))
    return bool(np.linalg.norm(first - second) <= SAME_MATRIX * np.linalg.norm(second))


def main(argv: Sequence[str] | None = None) -> None:
    """Quantise one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file")
    parser.add_argument("out", type=Path, help="the Q8_0 file to write")
    args = parser.parse_args(argv)
    quantise(args.source, args.out)


if __name__ == "__main__":
    main()
