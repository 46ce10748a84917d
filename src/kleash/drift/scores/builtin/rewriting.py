"""The same message in another register: a curt order made polite, a casual line made formal. Checked by word lists.

A word list sees the marks of a register, not its taste. So the answer must also keep the message's own word, stay
short, and not pile the marks up: praise of manners without the message is wrong.
"""

import re
from collections.abc import Sequence

from kleash.drift.scores.builtin.made import task
from kleash.drift.scores.task import Task

#: (message, the word that must stay).
ORDERS = (
    ("Give me the report.", "report"),
    ("Shut the window.", "window"),
    ("Send the invoice today.", "invoice"),
    ("Move your car.", "car"),
    ("Stop talking so loudly.", "talk"),
    ("Bring coffee.", "coffee"),
    ("Tell me the price.", "price"),
    ("Wait outside.", "outside"),
    ("Fix my computer.", "computer"),
    ("Hand me that pen.", "pen"),
    ("Turn the music down.", "music"),
    ("Call the doctor.", "doctor"),
    ("Clean the kitchen.", "kitchen"),
    ("Show your ticket.", "ticket"),
    ("Open the gate.", "gate"),
    ("Check these numbers again.", "numbers"),
    ("Get out of the lift.", "lift"),
    ("Reply to my letter.", "letter"),
    ("Lend me your ladder.", "ladder"),
    ("Water the plants.", "plants"),
    ("Don't smoke here.", "smok"),
    ("Take your shoes off.", "shoes"),
    ("Pay the bill now.", "bill"),
    ("Feed my cat on Sunday.", "cat"),
    ("Explain this word.", "word"),
    ("Cancel the meeting.", "meeting"),
    ("Write down your address.", "address"),
    ("Carry this suitcase.", "suitcase"),
    ("Pass the salt.", "salt"),
    ("Change my appointment.", "appointment"),
    ("Print ten copies.", "copies"),
    ("Return the book.", "book"),
    ("Switch off the light.", "light"),
    ("Speak more slowly.", "slow"),
    ("Let me sit here.", "sit"),
    ("Answer the phone.", "phone"),
    ("Translate this page.", "page"),
    ("Park somewhere else.", "park"),
    ("Sign the contract.", "contract"),
    ("Lock the door when you leave.", "door"),
    ("Keep your dog away.", "dog"),
    ("Finish the drawing by noon.", "drawing"),
)
#: (message, the word that must stay).
CASUAL = (
    ("gonna be late, traffic's awful", "traffic"),
    ("can't make the meeting, sorry guys", "meeting"),
    ("hey, where's my parcel?", "parcel"),
    ("wanna grab lunch and talk about the contract?", "contract"),
    ("your invoice is totally wrong", "invoice"),
    ("thx for the report, it's great", "report"),
    ("yeah the printer's broken again", "printer"),
    ("gimme a call about the budget", "budget"),
    ("that hotel was kinda dirty", "hotel"),
    ("nope, we don't do refunds", "refund"),
    ("the boss ain't in today", "today"),
    ("lemme know if the date's ok", "date"),
    ("we gotta move the deadline", "deadline"),
    ("dunno who broke the window", "window"),
    ("this software's a pain", "software"),
    ("hi folks, the office is shut on friday", "friday"),
    ("I'm super happy with the course", "course"),
    ("sorry, lost your letter", "letter"),
    ("pls fix the lift asap", "lift"),
    ("the food wasn't that bad tbh", "food"),
    ("hey, you forgot the signature", "signature"),
    ("we're kinda short of staff", "staff"),
    ("what's the deal with my application?", "application"),
    ("couldn't open your file, send it again", "file"),
    ("it's way too expensive for us", "expensive"),
    ("the kids loved the museum", "museum"),
    ("guess we'll skip the training", "training"),
    ("my flight's been axed", "flight"),
    ("yep, got your order", "order"),
    ("you guys never answer the phone", "phone"),
    ("the heating's bust, it's freezing", "heating"),
    ("no clue when the paint'll be dry", "paint"),
    ("let's chat about your salary", "salary"),
    ("the new guy's doing fine in sales", "sales"),
    ("hey doc, my knee still hurts", "knee"),
    ("can u send the slides?", "slides"),
    ("that's not what the brochure said", "brochure"),
    ("we'd love to see the garden", "garden"),
    ("sorry, the tickets are all gone", "tickets"),
    ("I'd like my deposit back, ok?", "deposit"),
    ("the train's late, don't wait", "train"),
    ("just checking on the repair", "repair"),
)
_POLITE = re.compile(
    r"\b(please|kindly|could you|would you|may i|might i|could i|would it be possible|if you don't mind|thank you"
    r"|thanks|grateful|appreciate|excuse me|pardon|sorry|be so kind|i was wondering|would you mind)\b"
)
_CASUAL = re.compile(
    r"\b(gonna|wanna|gotta|gimme|lemme|dunno|kinda|sorta|yeah|yep|nope|ain't|thx|pls|plz|asap|tbh|hey|hi|guys|folks|kids"
    r"|ok|okay|super|totally|awful|bust|axed|u|no clue|way too|a pain|the deal)\b|\w'(?:s|re|ll|d|ve|m|t)\b|!"
)
#: Words of an answer; marks of politeness in it. More is no message any more.
LONGEST, MOST_MARKS = 60, 3


def polite() -> Task:
    """Orders made polite."""
    asked = 'How do I say "{text}" politely? Write only the sentence.'
    return task("polite", "register", _asked(asked, ORDERS), _is_polite, max_new_tokens=32)


def formal() -> Task:
    """Casual lines made formal."""
    asked = 'Rewrite this message in formal English. Write only the new message.\n\n"{text}"'
    return task("formal", "register", _asked(asked, CASUAL), _is_formal, max_new_tokens=32)


def _asked(asked: str, rows: Sequence[tuple[str, str]]) -> list[tuple[str, tuple[str, str]]]:
    return [(asked.format(text=text), (text, word)) for text, word in rows]


def _plain(text: str) -> str:
    return text.casefold().replace("’", "'")


def _keeps(answer: str, want: tuple[str, str]) -> bool:
    """It is a message of its own with the message's word in it."""
    message, word = want
    said = _plain(answer)
    length = len(said.split())
    return word in said and 3 <= length <= LONGEST and said.strip("\"' \n") != _plain(message)


def _is_polite(answer: str, want: tuple[str, str]) -> bool:
    return _keeps(answer, want) and 1 <= len(_POLITE.findall(_plain(answer))) <= MOST_MARKS


def _is_formal(answer: str, want: tuple[str, str]) -> bool:
    return _keeps(answer, want) and _CASUAL.search(_plain(answer)) is None and answer.strip()[-1:] in '.?"”'
