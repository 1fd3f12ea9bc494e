"""What `outrider serve` keeps of calls: a log, and telemetry to a collector."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.telemetry.calls import Watcher
    from outrider.telemetry.counters import Counters


class Records:
    """Opened within ``stack`` before the model loads, so that what is wrong is said first. Raises ConfigError."""

    def __init__(self, stack: ExitStack, log: Path | None, with_text: bool, endpoint: str | None) -> None:
        from outrider.telemetry.request_log import RequestLog

        if with_text and log is None:
            raise ConfigError("--request-log-text needs --request-log: name a file")
        self._stack = stack
        self._log = None if log is None else stack.enter_context(RequestLog(log, with_text))
        self._exporters = None
        if endpoint is not None:
            try:
                from outrider.telemetry import otel

                self._exporters = otel.exporters(endpoint)
            except ImportError as error:
                raise ConfigError(f"--otlp-endpoint needs {error.name}: pip install 'outrider[otel]'") from None

    def watchers(self, counters: Counters, model: str) -> list[Watcher]:
        """Those who are told of calls; ``counters`` are exported with them."""
        out: list[Watcher] = [] if self._log is None else [self._log]
        if self._exporters is not None:
            from outrider.telemetry.otel import sending

            out.append(self._stack.enter_context(sending(counters, model, *self._exporters)))
        return out
