"""What each library does with its settings: a function a library, `Given` → `Checked`."""

from collections.abc import Callable

from kleash.check.libraries.kleash import kleash
from kleash.check.libraries.llamafactory import llamafactory
from kleash.check.libraries.openrlhf import openrlhf
from kleash.check.libraries.swift import swift
from kleash.check.libraries.trl import trl
from kleash.check.libraries.verl import verl
from kleash.check.records import Checked, Given, Number

LIBRARIES: dict[str, Callable[[Given, Number | None], Checked]] = {
    "TRL": trl,
    "verl": verl,
    "OpenRLHF": openrlhf,
    "LLaMA-Factory": llamafactory,
    "ms-swift": swift,
    "kleash": kleash,
}
