"""What our own runs write into TensorBoard, W&B and trackio (`runlog.boards`), read back."""

from kleash.records import Unit
from kleash.runlog.boards.figures import EVALUATION, in_unit
from kleash.runlog.importers.kleash import STEP_FIELDS, VOCABULARY, watched_only
from kleash.runlog.importers.vocabulary import KLSeries, Raw, Vocabulary

SCORE = f"{EVALUATION}score"
KTO_BASELINE = "kto_baseline"
UNITS: tuple[Unit, ...] = ("nats/sequence", "nats/token")


def _adapted(vocabulary: Vocabulary, raw: Raw) -> Vocabulary:
    """With the target's unit, and the scores that the run is not trained on, where the settings came along.

    A run whose steps measure no KL has the one of its evaluations.
    """
    keys, first = raw.table.keys, vocabulary.kl[0]
    unit = next((unit for unit in UNITS if in_unit("target", unit) in keys), None)
    gold = {f"scores/{name}": f"gold/{name}" for name in watched_only(raw.config)}
    kl = vocabulary.kl if first.key in keys else (first.but(key=EVALUATION + first.key), *vocabulary.kl[1:])
    columns = {**vocabulary.columns, **gold}
    if "preference" in keys:  # a reward model's own scores, which are no success
        del columns[SCORE]
    return vocabulary.but(target_unit=unit, columns=columns, kl=kl)


def _series(one: KLSeries) -> KLSeries:
    """The same KL as in a run's own log; a board does not say how it was estimated."""
    key = KTO_BASELINE if one.meaning == "kl_kto" else in_unit(one.key, one.unit or "nats/token")
    return one.but(key=key, estimator=None)


BOARDS = Vocabulary(
    trainer="kleash",
    method="by a board",
    signs=(
        ("score", "beta", "groups_without_spread"),
        ("log_ratio_chosen", "reward_margin"),
        ("preference", "centring"),
        ("loss", "epoch", "padding"),
    ),
    columns={
        **{field: column for field, column in STEP_FIELDS.items() if field != KTO_BASELINE},
        in_unit("kl_ref", "nats/sequence"): "kl_ref_sequence",
        in_unit("kl_origin", "nats/token"): "kl_origin",
        **{in_unit("target", unit): "target" for unit in UNITS},
        SCORE: "held_out/score",
        f"{EVALUATION}accuracy": "held_out/accuracy",
        f"{EVALUATION}length": "length",
        f"{EVALUATION}truncated": "truncated",
        EVALUATION + in_unit("kl_ref", "nats/sequence"): "kl_ref_sequence",
    },
    families=((f"{EVALUATION}scores/(.+)", "held_out/{}"), ("scores/(.+)", "reward/{}")),
    kl=tuple(map(_series, VOCABULARY.kl)),
    absent=VOCABULARY.absent,
    adapt=_adapted,
)
