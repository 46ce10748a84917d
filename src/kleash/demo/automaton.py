"""A recogniser for a tree of `kleash.demo.patterns`: the position automaton, made deterministic as it is used."""

from kleash.demo.patterns import HINGE, Node, Sequence, Words

State = frozenset[int]
END = 0  # the position that stands for "the sentence may stop here"


class Automaton:
    """Recognises the sentences of a tree, and their beginnings.

    Every `Words` node of the tree, for each thing that can follow it, is a position: the words it takes and the
    positions after it. A state is the set of positions that could come next.
    """

    def __init__(self, node: Node) -> None:
        self._words: list[frozenset[str]] = [frozenset()]
        self._after: list[State] = [frozenset()]
        self._compiled: dict[tuple[int, State], State] = {}
        self._steps: dict[tuple[State, str], State] = {}
        self.start = self._compile(node, frozenset((END,)))
        self._compiled.clear()
        self.vocabulary = frozenset().union(*self._words)

    def _compile(self, node: Node, after: State) -> State:
        """The positions a sentence may be at before `node`, when `after` are those behind it."""
        key = (id(node), after)
        if key not in self._compiled:
            self._compiled[key] = self._positions(node, after)
        return self._compiled[key]

    def _positions(self, node: Node, after: State) -> State:
        if isinstance(node, Words):
            if node.words == (HINGE,):
                return after
            self._words.append(frozenset(node.words))
            self._after.append(after)
            return frozenset((len(self._words) - 1,))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                after = self._compile(part, after)
            return after
        return frozenset().union(*(self._compile(option, after) for option in node.options))

    def step(self, state: State, word: str) -> State:
        """The state after one more word; empty if no sentence goes on this way."""
        if word not in self.vocabulary:  # remembers no step for the endless words that are none
            return frozenset()
        key = (state, word)
        if key not in self._steps:
            self._steps[key] = frozenset().union(*(self._after[p] for p in state if word in self._words[p]))
        return self._steps[key]

    def walk(self, words: list[str]) -> State:
        """The state after these words from the start."""
        state = self.start
        for word in words:
            state = self.step(state, word)
        return state

    def accepts(self, words: list[str]) -> bool:
        """Whether the words are a whole sentence."""
        return END in self.walk(words)

    def begins(self, words: list[str], piece: str = "") -> bool:
        """Whether some sentence begins with the words and goes on with a word that begins with `piece`."""
        return any(word.startswith(piece) for p in self.walk(words) for word in self._words[p])
