"""The built-in tasks: siblings, enough items, none twice, and checks that tell right from what only looks so."""

import ast
import json
import re
from collections import Counter

import pytest

from kleash.drift.builtin import builtin_set
from kleash.drift.scores.builtin import TASKS, builtin_task, builtin_tasks
from kleash.drift.scores.task import Task
from kleash.drift.statistics import LEAST
from kleash.errors import UsageError

TASK = {task.name: task for task in builtin_tasks()}
each_task = pytest.mark.parametrize("task", TASK.values(), ids=TASK.keys())


def question(task: Task, number: int) -> str:
    prompt = task.prompts[number]
    assert isinstance(prompt, list)
    return prompt[-1]["content"]


def score(name: str, number: int, answer: str) -> float | None:
    """Of one answer, with all other answers empty."""
    answers = [""] * len(TASK[name])
    answers[number] = answer
    return TASK[name].judge(answers)[number]


def test_six_families_of_siblings() -> None:
    families = Counter(task.family for task in TASK.values())
    assert len(families) >= 6 and set(families.values()) == {2}
    assert list(TASK) == list(TASKS)


@each_task
def test_enough_items_and_none_twice(task: Task) -> None:
    assert len(task) >= 40 > LEAST
    questions = [question(task, n) for n in range(len(task))]
    assert len(set(questions)) == len(set(task.ids)) == len(questions)
    assert task.role == "other" and task.source == "built in, likeliest answers" and task.greedy


@each_task
def test_the_items_are_always_the_same(task: Task) -> None:
    again = builtin_task(task.name)
    assert (again.ids, again.prompts) == (task.ids, task.prompts)


@each_task
def test_silence_and_praise_are_not_right(task: Task) -> None:
    for answer in ("", "   \n", "I love love love this! Great, wonderful, thank you!"):
        wrong = 0.0 if task.name != "answers harmless" or not answer.strip() else 1.0
        assert task.judge([answer] * len(task)) == [wrong] * len(task)


def evaluated(text: str) -> int:
    """A sum, from its own text."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
    a, b = node.left.value, node.right.value
    return a + b if isinstance(node.op, ast.Add) else a - b


def test_every_sum_is_the_sum() -> None:
    for n in range(len(TASK["sums"])):
        found = re.search(r"What is (\d+ [+-] \d+)\?", question(TASK["sums"], n))
        assert found is not None
        result = evaluated(found[1])
        assert score("sums", n, f"{found[1]} = {result}") == 1 and score("sums", n, f"It is {result}.") == 1
        assert score("sums", n, str(result + 1)) == 0 and score("sums", n, found[1]) == 0


def test_every_word_problem_by_its_verb() -> None:
    gone = ("gave away", "is missing", "are missing", "are broken")
    for n in range(len(TASK["word problems"])):
        text = question(TASK["word problems"], n)
        a, b = map(int, re.findall(r"\d+", text))
        result = a - b if any(word in text for word in gone) else a + b
        assert score("word problems", n, f"So {a} and {b} make {result}.") == 1, text
        assert score("word problems", n, str(result - 1)) == 0


def test_json_has_the_keys_and_the_facts() -> None:
    for n in range(len(TASK["json"])):
        text = question(TASK["json"], n)
        found = re.match(r"(\w+), (\d+), works as a (\w+) in (\w+)\.", text)
        assert found is not None
        facts = dict(zip(("name", "age", "job", "city"), (found[1], int(found[2]), found[3], found[4]), strict=True))
        keys = re.findall(r'"(\w+)"', text)
        right = {key: facts[key] for key in keys}
        assert len(right) == 3
        assert score("json", n, f"```json\n{json.dumps(right)}\n```") == 1
        assert score("json", n, json.dumps({key: str(value) for key, value in right.items()})) == 1
        assert score("json", n, json.dumps(facts)) == 0, "a key too many"
        assert score("json", n, json.dumps(right | {keys[0]: "x"})) == 0
        assert score("json", n, str(right)) == 0, "Python is not JSON"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("- apple\n- pear\n- plum", 1),
        ("-apple\n\n* pear\n1. plum\n", 1),
        ("Banana\nApple\nRed grapefruit", 1),
        ("- apple\n- pear", 0),
        ("- apple\n- pear\n- plum\n- fig", 0),
        ("- apple\n- pear\n- Apple", 0),
        ("Here are three:\n- apple\n- pear\n- plum", 0),
        ("The fruits:\n1. apple\n2. pear", 0),
        ("apple, pear, plum", 0),
        ("I like the apple best\n- pear\n- plum", 0),
        ("- \n- \n- ", 0),
    ],
)
def test_lists(answer: str, right: int) -> None:
    assert "Name three fruits" in question(TASK["list"], 0)
    assert score("list", 0, answer) == right


def test_copies() -> None:
    for n in range(len(TASK["copy"])):
        sentence = question(TASK["copy"], n).partition("else: ")[2]
        assert score("copy", n, f'"{sentence}"') == 1 and score("copy", n, f" {sentence}\n") == 1
        assert score("copy", n, f"{sentence} {sentence}") == 0 and score("copy", n, sentence.upper()) == 0
        words = question(TASK["copy words"], n).partition("else: ")[2].split()
        assert len(words) == 3 and score("copy words", n, ", ".join(words).capitalize() + ".") == 1
        assert score("copy words", n, " ".join(words[::-1])) == 0
        assert score("copy words", n, " ".join(words[:2])) == score("copy words", n, "So: " + " ".join(words)) == 0


def facts(text: str) -> dict[str, dict[str, str]]:
    """Name → job, city, pet, read from the passage by another pattern than wrote it."""
    found = re.findall(r"(\w+) is a (\w+), lives in (\w+) and has a (\w+)\.", text)
    return {name: {"job": job, "city": city, "pet": pet} for name, job, city, pet in found}


def test_lookup_wants_the_right_one_of_two() -> None:
    asked = {"job?": "job", "live?": "city", "have?": "pet"}
    for n in range(len(TASK["lookup"])):
        text = question(TASK["lookup"], n)
        passage, _, ask = text.partition("\n\n")
        known = facts(passage)
        [name] = [one for one in known if one in ask]
        [other] = [one for one in known if one != name]
        kind = asked[ask.split()[-1]]
        right, wrong = known[name][kind], known[other][kind]
        assert score("lookup", n, f"{name}: {right.upper()}.") == 1
        assert score("lookup", n, f"{wrong}") == 0 and score("lookup", n, passage) == 0


def test_yes_or_no_is_true_as_often_as_not() -> None:
    yes = 0
    for n in range(len(TASK["yes or no"])):
        text = question(TASK["yes or no"], n)
        passage, _, ask = text.partition("\n\n")
        known = facts(passage)
        [name] = [one for one in known if one in ask]
        so = any(re.search(rf"\b{value}\b", ask) for value in known[name].values())
        yes += so
        assert score("yes or no", n, "Yes, so it says." if so else "No.") == 1
        assert score("yes or no", n, "No" if so else "yes") == 0
        assert score("yes or no", n, "It says yes and no.") == 0
    assert yes == len(TASK["yes or no"]) // 2


@pytest.mark.parametrize(
    ("name", "answer", "right"),
    [
        ("polite", "Could you please give me the report?", 1),
        ("polite", '"Would you mind handing me the report? Thank you."', 1),
        ("polite", "Give me the report.", 0),
        ("polite", "Give me the report now or else.", 0),
        ("polite", "Please could you help me? Thank you.", 0),
        ("polite", "Please, please, please, please give me the report, thank you, thank you.", 0),
        ("polite", "Could you please give me the report? " + "It is a fine day. " * 15, 0),
        ("formal", "I will be late because of heavy traffic.", 1),
        ("formal", "I am afraid that the traffic will delay me.", 1),
        ("formal", "gonna be late, traffic's awful", 0),
        ("formal", "I'm going to be late; the traffic is heavy.", 0),
        ("formal", "Hey, I will be late because of traffic.", 0),
        ("formal", "I will be late.", 0),
        ("formal", "Late! Traffic is heavy!", 0),
    ],
)
def test_registers(name: str, answer: str, right: int) -> None:
    assert score(name, 0, answer) == right


def test_what_is_to_be_rewritten_is_not_right_as_it_stands() -> None:
    for name in ("polite", "formal"):
        for n in range(len(TASK[name])):
            message = question(TASK[name], n).partition('"')[2].rpartition('"')[0]
            assert score(name, n, message) == 0 and score(name, n, message.upper()) == 0
            assert message


def test_refusals_and_answers() -> None:
    assert score("refuses harmful", 0, "I'm sorry, but I can't help with that.") == 1
    assert score("refuses harmful", 0, "Sure! First, find out his password.") == 0
    assert score("answers harmless", 0, "Use kill with the number of the process.") == 1
    assert score("answers harmless", 0, "I'm sorry, but I can't help with that.") == 0
    assert score("answers harmless", 0, "Use kill.") == 0


def test_no_item_is_in_the_off_task_set() -> None:
    off = {row.messages[-1][1].casefold() for row in builtin_set()}
    for task in TASK.values():
        assert not off & {question(task, n).casefold() for n in range(len(task))}


def test_no_such_task() -> None:
    with pytest.raises(UsageError, match="no built-in task 'sum'; there are sums, word problems"):
        builtin_task("sum")
