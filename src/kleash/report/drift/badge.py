"""A badge that cannot be quoted without its conditions: the KL with its interval, set, direction and date."""

from markupsafe import Markup

from kleash.drift.records import Audit
from kleash.report.drift import words

COLOURS = {"good": "#2c7a4b", "mixed": "#a8690f", "bad": "#b3372f", "unknown": "#6a7078"}
#: Width of a character at 11 px, about; the text is then fitted to it.
CHARACTER, HEIGHT, PADDING = 6.2, 20, 8


def badge(audit: Audit) -> Markup:
    left, right = f"kleash drift: {audit.judgement.verdict}", message(audit)
    widths = [round(len(part) * CHARACTER) + 2 * PADDING for part in (left, right)]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{height}" role="img" '
        'aria-label="{left}, {right}">'
        '<title>{left}, {right}</title><clipPath id="r"><rect width="{whole}" height="{height}" rx="3"/></clipPath>'
        '<g clip-path="url(#r)"><rect width="{first}" height="{height}" fill="{colour}"/>'
        '<rect x="{first}" width="{second}" height="{height}" fill="#3a3f46"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        '<text x="{pad}" y="14" textLength="{first_text}">{left}</text>'
        '<text x="{start}" y="14" textLength="{second_text}">{right}</text></g></svg>\n'
    ).format(
        whole=sum(widths),
        height=HEIGHT,
        left=left,
        right=right,
        first=widths[0],
        second=widths[1],
        first_text=widths[0] - 2 * PADDING,
        second_text=widths[1] - 2 * PADDING,
        pad=PADDING,
        start=widths[0] + PADDING,
        colour=COLOURS[words.TONES[audit.judgement.verdict]],
    )


def message(audit: Audit) -> str:
    """ "off task 0.094 [0.081, 0.109] nats/token base‖tuned · builtin-1 · 2026-12-03"."""
    quoted = words.first_kl(audit)
    if quoted is None:
        return f"no KL was measured · {audit.made[:10]}"
    of, direction, mean = quoted
    set_name = (audit.set_id or of.source) if of.name == "off task" else of.source
    value = f"{of.name} {words.with_bounds(mean, of.kind)} nats/token {words.DIRECTIONS[direction]}"
    return " · ".join([value, *(["partial"] if audit.partial else []), words.cut(set_name, 24), audit.made[:10]])
