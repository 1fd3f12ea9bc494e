"""Looking a model up on the hub, in seconds and without retries."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelError, did_you_mean
from outrider.target.known import KNOWN

TIMEOUT = 10.0  # seconds


def hub_options(model: str, revision: str | None) -> dict[str, Any]:
    """Options for transformers' loaders: the revision, and ``local_files_only`` when only the local cache has it.

    Raises ModelError when the hub has no such model, or cannot be asked and the cache does not have it.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    known = did_you_mean(model, KNOWN) or ", ".join(KNOWN)
    tried = f"model={model!r} is no known name ({known}) and no local folder or .gguf file"
    try:
        HfApi().model_info(model, revision=revision, timeout=TIMEOUT)
    except HFValidationError:
        raise ModelError(f"{tried}, nor can it be a hub id: check the spelling") from None
    except RevisionNotFoundError:
        raise ModelError(
            f"revision={revision!r} of model={model!r} is not on the hub: name a branch, tag or commit"
        ) from None
    except GatedRepoError:
        raise ModelError(f"model={model!r} is gated on the hub: ask for access there and run `hf auth login`") from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"{tried}, and the hub has no such model: check the spelling, or run `hf auth login`"
        ) from None
    except Exception as error:  # every network library raises its own kind
        if isinstance(try_to_load_from_cache(model, "config.json", revision=revision), str):
            return options | {"local_files_only": True}
        raise ModelError(
            f"{tried}, and the hub cannot be reached ({type(error).__name__}): check the network, or give a local path"
        ) from None
    return options
