"""What an engine is to the export, and what comes out: commands, files, settings and what to know about them."""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.errors import ConfigError
from outrider.export import nearest
from outrider.export.deployment import Deployment

_TREES = {"tree_kind", "suffix_decoding_tree", "num_paths"}  # settings of engines that draw trees


@dataclass(slots=True)
class Exported:
    """A deployment in an engine's own words.

    ``command``: the server's, empty for libraries; ``before``: commands to run first; ``config``: the settings of
    speculation, as the engine's own class takes them; ``files``: text by name, beside which ``command`` runs;
    ``notes``: what differs from Outrider, a sentence each.
    """

    engine: str
    version: str
    method: str
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    before: list[list[str]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def command_line(self) -> str:
        """``command`` for a shell, with what it needs in its environment."""
        return " ".join([*(f"{key}={value}" for key, value in self.environment.items()), shlex.join(self.command)])

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Engine(ABC):
    """One engine. A method that is not in ``options`` is refused, as is a setting that is not among its options."""

    name: str
    versions: tuple[str, ...]  # the ones whose schema was read, the default first
    server: bool = True  # False: a library, whose export is a program
    names: Mapping[str, str]  # by method, what the engine calls it
    options: Mapping[str, tuple[str, ...]]  # by method, the settings that have a counterpart
    rules: Mapping[str, tuple[str, ...]]  # by method (or "" for all others), the rules that have a counterpart
    reasons: Mapping[str, str] = {}  # by method, why it is refused
    schedules: tuple[str, ...] = ()  # methods whose K can follow the load
    no_schedule: str = "it drafts one number of tokens at any load"
    head_layouts: tuple[str, ...] = ()  # of EAGLE-3 heads, which it loads; the first is written

    def export(self, deployment: Deployment, version: str | None = None) -> Exported:
        """The configuration. Raises ConfigError for what the engine cannot do, with what comes nearest."""
        version = self.check_version(version)
        self._check(deployment, version)
        out = Exported(self.name, version, self.names[deployment.method])
        self.convert(deployment, out)
        return out

    @abstractmethod
    def convert(self, deployment: Deployment, out: Exported) -> None:
        """Fill ``out`` with a deployment that has passed the checks that are common to all engines."""

    def check_version(self, version: str | None) -> str:
        """The version, or the default. Raises ConfigError for one that was not read."""
        if version is None:
            return self.versions[0]
        if version not in self.versions:
            raise ConfigError(
                f"--engine-version {version}: {self.name}'s configuration was read in {', '.join(self.versions)} only; "
                "choose one of these, and check what comes out against yours"
            )
        return version

    def able(self, version: str) -> Mapping[str, tuple[str, ...]]:
        """``options`` in ``version``."""
        return self.options

    def scheduled(self, version: str) -> tuple[str, ...]:
        """``schedules`` in ``version``."""
        return self.schedules

    def _check(self, deployment: Deployment, version: str) -> None:
        method, able = deployment.method, self.able(version)
        full = f"{self.name} {version}"
        if method not in able:
            why = self.reasons.get(method, f"{full} has no such method")
            raise ConfigError(f"method {method!r} cannot be exported to {full}: {why}; {nearest.method(method, able)}")
        if deployment.branches and not (_TREES & set(able[method])):
            raise ConfigError(
                f"{full} verifies chains with method {method!r}, and this draft is a tree: leave the settings of its "
                "tree out and give -k; sglang, trtllm and openvino draw trees with 'eagle3'"
            )
        for key, value in deployment.given().items():
            if key not in able[method]:
                has = ", ".join(able[method]) or "none"
                raise ConfigError(
                    f"setting {key}={value!r} of method {method!r} has no counterpart in {full}: leave it out; "
                    f"settings that have one: {has}"
                )
        rules = self.rules.get(method, self.rules[""])
        verifier = deployment.speculation.verifier
        if verifier not in rules:
            raise ConfigError(
                f"verifier {verifier!r} has no counterpart in {full} for method {method!r}; "
                f"{nearest.rule(verifier, rules)}"
            )
        if deployment.load_schedule is not None and method not in self.scheduled(version):
            able_to = ", ".join(self.scheduled(version))
            hint = f"it does with {able_to}" if able_to else "vllm, sglang and trtllm can"
            raise ConfigError(
                f"load schedule: {full} does not vary draft tokens of method {method!r} with the load "
                f"({self.no_schedule}); {hint}, or give the K of your usual load (-k)"
            )


def flags(values: Mapping[str, Any], prefix: str = "--") -> list[str]:
    """Words of a command line: ``True`` is a bare flag, None and False are left out."""
    out: list[str] = []
    for key, value in values.items():
        if value is None or value is False:
            continue
        out.append(f"{prefix}{key.replace('_', '-')}")
        if value is not True:
            out.append(str(value))
    return out


def compact(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, separators=(", ", ": "))


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` without those that are None."""
    return {key: value for key, value in values.items() if value is not None}
