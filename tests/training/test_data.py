"""Prompts from files and from Python, and the order in which steps take them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash.errors import UsageError
from kleash.training.data import as_prompts, conversations, digest, indices, read_prompts

MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_text_file_is_a_prompt_a_line(tmp_path):
    path = tmp_path / "p.txt"
    path.write_bytes("The film was\r\n\n  \nété \u2028 end\n".encode())
    assert read_prompts(path).prompts == ["The film was", "été \u2028 end"]


def test_a_table_keeps_its_columns_and_their_order(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": "a\u2028b", "answer": 1}, {"answer": 2, "prompt": MESSAGES}]
    path.write_text("\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    found = read_prompts(path)
    assert found.prompts == ["a\u2028b", MESSAGES]
    assert found.columns == {"answer": [1, 2]}
    assert found.take([1, 0], 2) == ([MESSAGES, MESSAGES, "a\u2028b", "a\u2028b"], {"answer": [2, 2, 1, 1]})
    assert read_prompts(path, "answer").columns == {"prompt": ["a\u2028b", MESSAGES]}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.md", "x", "read from .jsonl"),
        ("p.txt", "\n \n", "there are no prompts"),
        ("p.jsonl", "", "there are no prompts"),
        ("p.jsonl", '\n{"prompt": "a"}\n{"prompt": ', "line 3: not JSON"),
        ("p.jsonl", '{"text": "a"}', "row 0 has no column 'prompt'; it has text"),
        ("p.jsonl", '{"prompt": "a", "x": 1}\n{"prompt": "b"}', "must agree"),
        ("p.jsonl", '{"prompt": "a"}\n3', "prompt 1 must be text"),
        ("p.jsonl", '"a"\n{"prompt": "b"}', "prompt 1 is a table row and others are not"),
        ("p.jsonl", '{"prompt": "a", "completions": "b"}', "'completions' has the name"),
        ("p.jsonl", "3", "prompt 0 must be text"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(UsageError, match="no prompt file"):
        read_prompts(tmp_path / "p.txt")
    (tmp_path / "p.txt").write_bytes(b"\xff\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        read_prompts(tmp_path / "p.txt")


def test_from_python():
    assert as_prompts(["a", MESSAGES]).prompts == ["a", MESSAGES]
    assert as_prompts(({"prompt": p, "n": i} for i, p in enumerate("ab"))).columns == {"n": [0, 1]}
    with pytest.raises(UsageError, match="no prompts"):
        as_prompts([])
    with pytest.raises(UsageError, match="prompt 1 must be text"):
        as_prompts(["a", 3])


def test_from_a_dataset():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list([{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}])
    found = as_prompts(table)
    assert (found.prompts, found.columns) == (["a", "b"], {"n": [1, 2]})


def test_columns_and_splits_are_not_rows():
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    table = datasets.Dataset.from_list([{"prompt": "a"}])
    for given_ in ({"prompt": ["a"]}, datasets.DatasetDict(train=table), pandas.DataFrame({"prompt": ["a"]})):
        with pytest.raises(UsageError, match="prompts must be rows"):
            as_prompts(given_)


def test_a_system_prompt_stands_before_every_prompt():
    system = {"role": "system", "content": "be kind"}
    asked = conversations(as_prompts(["a", MESSAGES]), system="be kind")
    assert asked.prompts == [[system, {"role": "user", "content": "a"}], [system, *MESSAGES]]
    assert conversations(as_prompts(["a", MESSAGES]), chat=True).prompts == [
        [{"role": "user", "content": "a"}],
        MESSAGES,
    ]
    assert conversations(as_prompts(["a"])).prompts == ["a"]
    with pytest.raises(UsageError, match="prompt 1 has a system message of its own"):
        conversations(as_prompts([MESSAGES, [system, *MESSAGES]]), system="be kind")


def test_the_digest_is_of_the_content(tmp_path):
    rows = [{"prompt": "a", "n": {"x": 1, "y": [2]}}, {"prompt": MESSAGES, "n": {"x": None, "y": []}}]
    same = [{"n": {"y": [2], "x": 1}, "prompt": "a"}, rows[1]]
    first = digest(as_prompts(rows))
    assert first["number"] == 2
    (tmp_path / "p.jsonl").write_text("\r\n\n".join(map(json.dumps, same)))
    assert digest(read_prompts(tmp_path / "p.jsonl")) == first
    others = [
        rows[::-1],
        [rows[0] | {"prompt": "b"}, rows[1]],
        [rows[0] | {"n": {"x": 1.5, "y": [2]}}, rows[1]],
        [{"prompt": "a", "m": row["n"]} for row in rows],
    ]
    assert len({first["content"], *(digest(as_prompts(other))["content"] for other in others)}) == 5


def test_objects_in_columns_have_a_digest_that_repeats():
    def made() -> object:
        return as_prompts([{"prompt": "a", "judge": object(), 3: {1: 2, "a": b"x"}}])

    assert digest(made()) == digest(made())


@given(st.integers(0, 50), st.integers(1, 6), st.integers(0, 9), st.integers(0, 2**63 - 1))
def test_an_epoch_takes_no_prompt_twice(epoch, count, extra, seed):
    total = count * 3 + extra % count
    taken = [i for step in range(3) for i in indices(epoch * 3 + step, count, total, seed)]
    assert len(set(taken)) == len(taken) == 3 * count
    assert set(taken) <= set(range(total))


def test_epochs_differ_and_a_step_repeats_itself():
    first, second = ([indices(step, 2, 20, 0) for step in range(a, a + 10)] for a in (0, 10))
    assert first != second
    assert first == [indices(step, 2, 20, 0) for step in range(10)]
    assert first != [indices(step, 2, 20, 1) for step in range(10)]
    assert {i for step in first for i in step} == set(range(20))


def test_more_prompts_a_step_than_there_are():
    with pytest.raises(UsageError, match="prompts_per_step = 3 exceeds the 2 prompts"):
        indices(0, 3, 2, 0)
