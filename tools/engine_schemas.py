"""Record what engines' configurations take, from their released packages, in tests/export/schemas/*.json.

    python tools/engine_schemas.py FOLDER      # packages are fetched into FOLDER, and read there

Nothing is imported: wheels are read with ``ast``, llama.cpp's options (its C++ comes in llama-cpp-python's source) with
a regular expression, OpenVINO GenAI's class from its type stub. TensorRT-LLM is not on the package index; its schema
was taken from its repository by hand and is left alone.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).resolve().parents[1] / "tests" / "export" / "schemas"
PACKAGES = {
    "vllm": "vllm==0.33.0",
    "sglang": "sglang==0.5.23",
    "llamacpp": "llama-cpp-python==0.3.36",
    "transformers": "transformers==5.24.0",
    "openvino": "openvino-genai==2026.4.1.0",
}
ANY = "any"
SGLANG_OTHERS = ("model_path", "context_length", "tp_size", "max_running_requests")  # fields that are recorded too


def main(arguments: Sequence[str]) -> int:
    """Fetch and record; the exit status."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    readers = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "transformers": transformers, "openvino": openvino}
    for engine, reader in readers.items():
        package = fetch(folder, PACKAGES[engine])
        schema = {"package": PACKAGES[engine], **reader(package)}
        text = json.dumps(schema, indent=1, sort_keys=True) + "\n"
        (SCHEMAS / f"{engine}.json").write_text(text, encoding="utf-8")
        print(f"{engine}: {len(schema['fields'])} fields, {len(schema.get('flags', ()))} flags", file=sys.stderr)
    return 0


def fetch(folder: Path, requirement: str) -> Path:
    """The file of a package, from ``folder`` or through pip."""
    name, _, version = requirement.partition("==")
    start = f"{name.replace('-', '_')}-{version}"
    found = [path for path in folder.iterdir() if path.name.startswith(start) and path.suffix in (".whl", ".gz")]
    if not found:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
        command += ["--no-binary", ":all:"] if name == "llama-cpp-python" else []
        subprocess.run(command, check=True)
        return fetch(folder, requirement)
    return found[0]


def read(package: Path, inside: str) -> str:
    """The text of a file in a wheel or a source package."""
    if package.suffix == ".whl":
        return zipfile.ZipFile(package).read(inside).decode()
    with tarfile.open(package) as archive:
        member = next(item for item in archive if item.name.endswith(inside))
        file = archive.extractfile(member)
        assert file is not None
        return file.read().decode()


def class_in(text: str, name: str) -> ast.ClassDef:
    """A class of a module."""
    return next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)


def literals(text: str) -> dict[str, list[str]]:
    """Module-level ``NAME = Literal[...]``, names within them resolved."""
    out: dict[str, list[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            target = node.targets[0]
            if isinstance(target, ast.Name) and ast.unparse(node.value.value) == "Literal":
                out[target.id] = list(_values(node.value.slice, out))
    return out


def _values(node: ast.expr, known: dict[str, list[str]]) -> Iterator[Any]:
    for item in node.elts if isinstance(node, ast.Tuple) else [node]:
        if isinstance(item, ast.Name):
            yield from known[item.id]
        elif isinstance(item, ast.Constant):
            yield item.value


def kind_of(annotation: str) -> str:
    """int, float, bool, str, list or any."""
    for word in ("bool", "int", "float", "str", "list"):
        if re.fullmatch(rf"(Optional\[)?{word}\b(?!\[).*", annotation) and "|" not in annotation.replace("| None", ""):
            return word
    return "list" if annotation.startswith("list[") else ANY


def field(node: ast.AnnAssign, annotation: str, known: dict[str, list[str]]) -> dict[str, Any]:
    """Kind, default, choices and bounds of a field."""
    out: dict[str, Any] = {"kind": kind_of(annotation)}
    plain = annotation.replace("| None", "").strip()
    if plain in known:
        out |= {"kind": "str", "choices": known[plain]}
    elif plain.startswith("Literal["):
        out |= {"kind": "str", "choices": list(ast.literal_eval(plain.removeprefix("Literal")))}
    value = node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
        keywords = {word.arg: word.value for word in value.keywords}
        out |= {key: ast.literal_eval(keywords[key]) for key in ("gt", "ge", "le", "lt") if key in keywords}
        value = keywords.get("default")
    if value is not None:
        with contextlib.suppress(NameError, TypeError, AttributeError):
            out["default"] = eval(compile(ast.Expression(value), "", "eval"), {"__builtins__": {}})  # 10 * 1000
    return out


def vllm(package: Path) -> dict[str, Any]:
    """Fields of SpeculativeConfig, and the names of `vllm serve`'s options."""
    text = read(package, "vllm/config/speculative.py")
    known = literals(text)
    inner = ("target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config")
    fields = {
        node.target.id: field(node, ast.unparse(node.annotation), known)
        for node in class_in(text, "SpeculativeConfig").body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id not in inner
    }
    sources = read(package, "vllm/engine/arg_utils.py") + read(package, "vllm/entrypoints/common/cli_args.py")
    flags = set(re.findall(r'"(--[a-z][a-z0-9-]+|-[a-z]{1,4})"', sources))
    for node in ast.walk(ast.parse(read(package, "vllm/entrypoints/common/cli_args.py"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            flags.add("--" + node.target.id.replace("_", "-"))
    flags |= {"--host", "--port", "--api-key", "--config"}
    return {"fields": fields, "flags": sorted(flags)}


def sglang(package: Path) -> dict[str, Any]:
    """Fields of all namespaces of ServerArgs; flags are their names."""
    fields: dict[str, Any] = {}
    flags: set[str] = set()
    names = zipfile.ZipFile(package).namelist()
    modules = [name for name in names if re.fullmatch(r"sglang/srt/arg_groups/fields/[a-z_]+\.py", name)]
    for module in sorted(modules):
        for node in ast.walk(ast.parse(read(package, module))):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            if not isinstance(node.annotation, ast.Subscript) or ast.unparse(node.annotation.value) != "A":
                continue
            arguments = node.annotation.slice
            assert isinstance(arguments, ast.Tuple)
            source = ast.unparse(arguments)
            name = node.target.id
            if "no_cli=True" in source or name.startswith("_"):
                continue
            if "specul" in name or "eagle" in name or name in SGLANG_OTHERS:
                fields[name] = _sglang_field(node, arguments)
            flags.add("--" + name.replace("_", "-"))
            flags |= set(re.findall(r"'(--[a-z0-9-]+)'", source.partition("aliases=")[2].partition("]")[0]))
            flags |= set(re.findall(r"cli_name='(--[a-z0-9-]+)'", source))
    flags |= set(re.findall(r'^            "(--[a-z0-9-]+)"', read(package, "sglang/srt/server_args.py"), re.MULTILINE))
    return {"fields": fields, "flags": sorted(flags | {"--config"})}


def _sglang_field(node: ast.AnnAssign, arguments: ast.Tuple) -> dict[str, Any]:
    out = field(node, ast.unparse(arguments.elts[0]), {})
    extra = arguments.elts[1] if len(arguments.elts) > 1 else None
    for word in extra.keywords if isinstance(extra, ast.Call) else ():
        if word.arg == "choices" and isinstance(word.value, ast.List):
            out["choices"] = ast.literal_eval(word.value)
    return out


def llamacpp(package: Path) -> dict[str, Any]:
    """Every option with its spellings; those that say that they were removed apart."""
    source = read(package, "vendor/llama.cpp/common/arg.cpp")
    fields: dict[str, Any] = {}
    gone: dict[str, str] = {}
    for part in re.split(r"\bcommon_arg\(", source)[1:]:
        head = re.match(r"\s*((?:\{[^}]*\},?\s*)+)", part)
        if head is None:
            continue
        parameters = re.search(r"\[\]\(common_params ?&[^,)]*(,[^)]*)?\)", part)
        takes_value = parameters is not None and parameters[1] is not None and "bool" not in parameters[1]
        message = re.search(r"the argument has been removed[^\"]*", part[: parameters.start()] if parameters else part)
        for name in re.findall(r'"(-[^"]+)"', head[1]):
            if message is not None:
                gone[name] = message[0]
            else:
                fields[name] = {"kind": "value" if takes_value else "bool"}
    types = re.findall(
        r"case COMMON_SPECULATIVE_TYPE_\w+:\s*return \"([a-z0-9-]+)\"",
        read(package, "vendor/llama.cpp/common/speculative.cpp"),
    )
    fields["--spec-type"]["choices"] = types
    return {"fields": fields, "flags": sorted(fields), "gone": gone}


def transformers(package: Path) -> dict[str, Any]:
    """What GenerationConfig pops from its keywords."""
    text = read(package, "transformers/generation/configuration_utils.py")
    names = re.findall(r'self\.([a-z_0-9]+) = kwargs\.pop\("\1"', text)
    return {"fields": {name: {"kind": ANY} for name in names}}


def openvino(package: Path) -> dict[str, Any]:
    """Properties of GenerationConfig."""
    stub = ast.parse(read(package, "openvino_genai/py_openvino_genai.pyi"))
    config = next(node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "GenerationConfig")
    fields: dict[str, Any] = {}
    for node in config.body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(item) == "property" for item in node.decorator_list):
            fields[node.name] = {"kind": kind_of(ast.unparse(node.returns)) if node.returns else ANY}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = {"kind": kind_of(ast.unparse(node.annotation))}
    return {"fields": fields}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
