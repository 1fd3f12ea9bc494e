"""The router between the gateway and the replicas, for Ray Serve (``ray.serve.request_router``, an API in alpha)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RequestRouter, RunningReplica

from outrider.server.replicas.prefixes import Prefixes


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Sends a call to the replica that has its prefix cached, unless that one is much busier than another.

    Ray's own router by prefixes needs the whole of ``ray[llm]``, vLLM among it.
    """

    def initialize_state(self, margin: int = 4) -> None:
        """``margin``: how many requests more than the idlest replica one may have and still be chosen for its cache."""
        self._margin = margin
        self._prefixes: Prefixes[ReplicaID] = Prefixes()
        self._load: Counter[ReplicaID] = Counter()  # requests that were sent and have not ended

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The chosen one; behind it all, for the case that it takes no more."""
        if not candidate_replicas:
            return []
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        chosen = self._prefixes.best(list(by_id), _prefix(pending_request), self._load, self._margin)
        return [[by_id[chosen]], candidate_replicas]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        """The replica has taken it: from now on it has the prefix."""
        self._prefixes.note(replica_id, _prefix(pending_request))

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Count it."""
        super().on_send_request(replica_id)
        self._load[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count it no more."""
        super().on_request_completed(replica_id, internal_request_id)
        self._load[replica_id] -= 1

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """What those that are gone had cached is gone."""
        super().update_replicas(replicas)
        there = {replica.replica_id for replica in replicas}
        self._prefixes.keep(there)
        self._load = Counter({replica: load for replica, load in self._load.items() if replica in there})


def _prefix(request: PendingRequest | None) -> tuple[bytes, ...]:
    call: Any = request.args[0] if request is not None and request.args else None
    return getattr(call, "prefix", ())
