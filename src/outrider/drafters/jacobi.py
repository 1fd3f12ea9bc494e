"""The two-dimensional window of lookahead decoding: guesses of future tokens, refined by one Jacobi step a forward.

Cell (level i, column j) guesses the token i + j + 1 positions behind the root. As a probe, (0, j) has parent
(0, j - 1) and (i, j) has parent (i - 1, j), so that a row sees the context, the first level up to its column, and its
own column. The target's argmax at the last level makes one more level, and the columns are then n-grams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.core.draft import Probes

Fill = Callable[[int], int]  # a token for a column that has none


class Window:
    """``levels[i][j]``; at most ``max_levels`` levels of ``width`` columns. The first one is made of ``fill``."""

    def __init__(self, width: int, max_levels: int, fill: Fill) -> None:
        self.max_levels = max_levels
        self.levels: list[list[int]] = [[fill(column) for column in range(width)]]

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.levels[0])

    def probes(self) -> Probes:
        """All cells, level by level."""
        width, cells = self.width, len(self.levels) * self.width
        return Probes(
            tokens=[token for level in self.levels for token in level],
            parents=[*range(-1, width - 1), *range(cells - width)],
        )

    def ngrams(self, best: Sequence[int]) -> list[tuple[int, list[int]]]:
        """The columns with ``best`` [width], the target's argmax at the last level, below them: (first token, rest).
        None while the window has not reached its full height."""
        if len(self.levels) < self.max_levels:
            return []
        columns = zip(*self.levels, best, strict=True)
        return [(first, rest) for first, *rest in columns]

    def advance(self, best: Sequence[int] | None, moved: int, fill: Fill) -> None:
        """``best`` becomes the last level (None: the probes were not computed), the root moves ``moved`` positions on.

        Dropping the first level is a move by one, since every other level guesses one position further. A column that
        comes into the window from the right takes the cell of the last column that stands at its position.
        """
        levels = self.levels if best is None else [*self.levels, list(best)]
        if len(levels) > self.max_levels:
            levels, moved = levels[1:], moved - 1
        last = self.width - 1

        def cell(level: int, column: int) -> int:
            if column <= last:
                return levels[level][column]
            level += column - last
            return levels[level][last] if level < len(levels) else fill(column)

        self.levels = [[cell(level, column + moved) for column in range(last + 1)] for level in range(len(levels))]
