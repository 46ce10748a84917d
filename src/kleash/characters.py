"""Characters that a tokenizer or a terminal cannot take. Standard library only."""


def half_character(text: str) -> str | None:
    """Where half of a surrogate pair stands alone, as "\\ud83d" may in JSON: no tokenizer takes that."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half a character ({text[error.start]!r}) at position {error.start}"
    return None


def printable(text: str) -> str:
    """On one line and without control codes: what a model or a file says must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text.replace("\n", " ⏎ "))
