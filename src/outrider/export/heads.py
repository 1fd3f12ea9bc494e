"""A draft head for another engine: used as it is, or written in a layout that the engine reads."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ConfigError, ModelError
from outrider.export.base import Engine
from outrider.export.deployment import Deployment

FOLDER = "head"


def place(deployment: Deployment, engine: Engine, out: Path | None) -> tuple[Deployment, list[str]]:
    """The deployment with a head that ``engine`` reads, and what was done.

    A folder in a layout that the engine reads stays; another one is written to ``out / "head"``; a name that is no
    folder is taken for a hub id. Raises ConfigError where the engine has no layout for heads of this kind.
    """
    name = deployment.speculation.model
    if name is None:
        name = _shipped(deployment)
    path = Path(name)
    if path.suffix == ".gguf" or not path.is_dir():
        if path.suffix != ".gguf":
            _check_hub_id(name)
        return _with(deployment, name), [f"the head {name} is taken as it is: it is no folder here to look into"]
    from outrider.heads.layouts.base import Checkpoint
    from outrider.heads.layouts.table import layout_of

    layout = layout_of(Checkpoint.read(path)).name
    if layout in engine.head_layouts and deployment.method == "eagle3":
        return _with(deployment, str(path.resolve())), [
            f"the head {name} is in the layout {layout}, which is read as is"
        ]
    return _with(deployment, str(_convert(deployment, engine, path, layout, out))), [
        f"the head was written in the layout {engine.head_layouts[0]} (from {name}, in {layout})"
    ]


def _check_hub_id(name: str) -> None:
    """Raises ConfigError for a name that must be a path on this machine, where there is nothing."""
    if name.startswith(("/", ".", "~")) or name.count("/") != 1 or Path(name).parent.is_dir():
        raise ConfigError(f"--head {name}: there is no such folder; name one with a head, or a hub id (owner/name)")


def _convert(deployment: Deployment, engine: Engine, path: Path, layout: str, out: Path | None) -> Path:
    from outrider.engine.heads import bound_by_name
    from outrider.heads import files
    from outrider.heads.layouts.table import layout_named

    if not engine.head_layouts or deployment.method != "eagle3":
        raise ConfigError(
            f"the head {path} is in the layout {layout}, and there is no way to write {deployment.method!r} heads for "
            f"{engine.name}: train one that can be converted (`outrider train eagle3`), or name one made for it"
        )
    if out is None:
        raise ConfigError(f"the head {path} must be written in {engine.name}'s layout: name a folder with --out")
    target = deployment.target
    head = files.load(path, None if layout.startswith("outrider") else bound_by_name(target))
    writer = layout_named(engine.head_layouts[0], head.config.kind)
    folder = out / FOLDER
    writer.write(head, deployment.public_target).write(folder)
    return folder.resolve()


def _shipped(deployment: Deployment) -> str:
    """The head that comes with Outrider for this target. Raises ConfigError where none does."""
    from outrider.engine.heads import bound_by_name
    from outrider.heads import shipped

    try:
        found = shipped.find(deployment.method, bound_by_name(deployment.target).fingerprint)
    except ModelError as error:
        raise ConfigError(
            f"method {deployment.method!r} needs a head: name one with --head; whether one comes with outrider cannot "
            f"be told, since {error}"
        ) from None
    if found is None:
        raise ConfigError(
            f"method {deployment.method!r} needs a head, and none comes with outrider for {deployment.target}: "
            "name one with --head"
        )
    return str(found)


def _with(deployment: Deployment, model: str) -> Deployment:
    config = deployment.speculation.model_copy(update={"model": model})
    return deployment.model_copy(update={"speculation": config})
