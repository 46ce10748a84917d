"""How often updates were not finite, and when that is too often. Pure: `kleash.training.rollback` does what follows."""

from dataclasses import dataclass, replace

#: Steps with a skipped update, one after the other, after which a run goes back.
IN_A_ROW = 3
#: How often a run goes back before it gives up, and by how much its learning rate is multiplied each time.
MOST_ROLLBACKS, RATE_FACTOR = 3, 0.5


@dataclass(frozen=True, slots=True)
class Recovery:
    """in_a_row: steps just done in which an update was skipped. rollbacks: how often the run has gone back.

    lowered: how often the monitor has lowered the learning rate without going back.
    """

    in_a_row: int = 0
    rollbacks: int = 0
    lowered: int = 0

    @property
    def rate_factor(self) -> float:
        return RATE_FACTOR ** (self.rollbacks + self.lowered)

    @property
    def due(self) -> bool:
        return self.in_a_row >= IN_A_ROW

    def first_bad(self, step: int) -> int:
        """The first step of the present row, which a checkpoint must lie before to be known as good.

        A checkpoint is *good* once a finite update was made from its weights. While updates are skipped the weights do
        not move, so what was saved at the row's first step, or in it, may be what is broken.
        """
        return step - self.in_a_row

    def after(self, skipped: int) -> "Recovery":
        """The state after a step that skipped so many updates."""
        return replace(self, in_a_row=self.in_a_row + 1 if skipped else 0)

    def gone_back(self) -> "Recovery":
        return replace(self, in_a_row=0, rollbacks=self.rollbacks + 1)

    def lower(self) -> "Recovery":
        return replace(self, lowered=self.lowered + 1)
