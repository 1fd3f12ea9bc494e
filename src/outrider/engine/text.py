"""The text of one sequence as its tokens come in: detokenisation, stop strings, and what may be shown already."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.target.tokenizer import Tokenizer


class OutputText:
    """Text that grows token by token. The step decides with it where a stop string ends the sequence; a stream shows
    ``released()`` text only, which can no longer become part of a stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt_ids: Sequence[int],
        stop: Sequence[str],
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._stream = None
        if tokenizer is not None:
            self._stream = tokenizer.stream(prompt_ids[-8:], skip_special_tokens=skip_special_tokens)
        self._stop, self._include_stop = stop, include_stop
        self._hold = max((len(text) for text in stop), default=0)
        self._shown = 0
        self._done = False
        self.text = ""

    def push(self, token: int, *, stoppable: bool = True) -> str | None:
        """Add a token; the stop string that its text completed (the text is cut there), or None."""
        if self._stream is None:
            return None
        return self._add(self._stream.push(token), stoppable)

    def _add(self, new: str, stoppable: bool) -> str | None:
        before = len(self.text)
        self.text += new
        if not new or not stoppable or not self._stop:
            return None
        # a stop string counts where it ends in the new text: an earlier one was passed by on purpose (min_tokens)
        starts = [(max(0, before - len(stop) + 1), stop) for stop in self._stop]
        found = [(self.text.find(stop, start), stop) for start, stop in starts]
        hits = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        if not hits:
            return None
        _, at, stop = min(hits)  # the one that was complete first, however the text is cut into tokens
        self.text = self.text[: at + len(stop) if self._include_stop else at]
        self._done = True
        return stop

    def end(self, token: int) -> None:
        """The token itself ended the sequence (EOS, stop token): its text shows when stop strings do."""
        if self._stream is not None and self._include_stop:
            self.text += self._stream.push(token)
        self.finish()

    def finish(self, *, stoppable: bool = False) -> str | None:
        """No more tokens: flush what the decoder held back; the stop string that this completed, or None."""
        found = None
        if self._stream is not None and not self._done:
            found = self._add(self._stream.flush(), stoppable)
        self._done = True
        return found

    def released(self) -> str:
        """Text that was not released yet and is safe to show."""
        end = len(self.text) if self._done or not self._stop else max(self._shown, len(self.text) - self._hold + 1)
        out = self.text[self._shown : end]
        self._shown = end
        return out
