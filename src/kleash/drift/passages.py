"""Which texts and tokens an audit shows: those that moved most, and one that moved as most do. No torch."""

import numpy as np
from numpy.typing import NDArray

from kleash.drift.records import Passage, Token
from kleash.drift.table import TokenTable

#: A report stays small: so many texts, so many tokens of each, so many tokens in the list of those that moved most.
MOST_PASSAGES, MOST_TOKENS, MOST_MOVED = 9, 400, 40
#: A text's mean is of so many tokens, or it is not among those that moved most: a one-word answer always leads.
LEAST_TOKENS = 8
#: Of the same token in the list of those that moved most.
MOST_OF_ONE = 2


def heat_maps(table: TokenTable) -> list[Passage]:
    """The texts with the largest mean forward KL, largest first, and last the one in the middle of them all.

    The forward KL at each token is a number of its own wherever the text is from, so samples are shown by it too.
    """
    if table.forward is None:
        return []
    fine = np.isfinite(table.forward)
    count = len(table.documents)
    sizes = np.bincount(table.document[fine], minlength=count)
    sums = np.bincount(table.document[fine], table.forward[fine], minlength=count)
    means = np.divide(sums, sizes, out=np.full(count, -np.inf), where=sizes > 0)
    order = np.argsort(-means, kind="stable")
    order = order[np.isfinite(means[order])]
    if not len(order):
        return []
    long_enough = order[sizes[order] >= min(LEAST_TOKENS, sizes.max())]
    chosen = list(long_enough[: MOST_PASSAGES - 1])
    middle = order[len(order) // 2]
    if middle not in chosen:
        chosen.append(middle)
    return [_passage(table, int(number), float(means[number])) for number in chosen]


def _passage(table: TokenTable, number: int, mean: float) -> Passage:
    document = table.documents[number]
    rows = np.flatnonzero(table.document == number)[:MOST_TOKENS]
    return Passage(
        id=document.id,
        domain=document.domain,
        prompt=document.prompt_text,
        tokens=[_token(table, int(row)) for row in rows],
        forward=mean,
    )


def moved_tokens(table: TokenTable) -> list[Token]:
    """The tokens with the largest forward KL, largest first; of one token id only the first two."""
    if table.forward is None:
        return []
    found, seen = [], dict[int, int]()
    for row in _largest(table.forward):
        token = int(table.token[row])
        seen[token] = seen.get(token, 0) + 1
        if seen[token] <= MOST_OF_ONE:
            found.append(_token(table, int(row)))
        if len(found) == MOST_MOVED:
            break
    return found


def _largest(values: NDArray[np.float64]) -> NDArray[np.int64]:
    order = np.argsort(-values, kind="stable")  # NaN comes last
    return order[np.isfinite(values[order])]


def _token(table: TokenTable, row: int) -> Token:
    forward = None if table.forward is None else _number(table.forward[row])
    piece = table.documents[table.document[row]].pieces[table.position[row]]
    flipped = table.same_top1 is not None and bool(table.whole[row]) and not table.same_top1[row]
    return Token(text=piece, forward=forward, delta=_number(table.delta[row]), flipped=flipped)


def _number(value: float) -> float | None:
    """Five digits are enough to look at."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
