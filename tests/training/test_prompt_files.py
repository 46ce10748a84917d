"""Prompts from every kind of file, from directories of them, and from data sets: the rows as they are there."""

import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from kleash.errors import UsageError
from kleash.training.data import read_prompts
from kleash.training.prompt_files import from_hub, read_rows

CHAT = [{"role": "user", "content": "hello"}]
#: Nested columns, a missing value, text that looks like a number, and a line separator that is no line end.
ROWS = [
    {"prompt": 'a, "b"\nc', "answer": "007", "extra": {"tags": ["x", "y"], "depth": {"n": 1}}},
    {"prompt": "é \u2028 end", "answer": "NA", "extra": {"tags": [], "depth": {"n": 2}}},
    {"prompt": "third", "answer": None, "extra": {"tags": ["z"], "depth": {"n": 3}}},
]


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_parquet_file_keeps_nested_columns(tmp_path):
    assert read_rows(parquet(tmp_path / "p.parquet", ROWS)) == ROWS
    found = read_prompts(tmp_path / "p.parquet")
    assert found.columns["extra"] == [row["extra"] for row in ROWS]
    assert found.columns["answer"] == ["007", "NA", None]


def test_messages_survive_a_parquet_file(tmp_path):
    parquet(tmp_path / "p.parquet", [{"messages": CHAT, "n": 1}, {"messages": CHAT * 3, "n": 2}])
    assert read_prompts(tmp_path / "p.parquet", "messages").prompts == [CHAT, CHAT * 3]


def test_a_csv_file_is_text_without_guesses(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes('\ufeffprompt,answer\r\n"a, ""b""\nc",007\r\n\r\nNA,\r\n'.encode())
    assert read_rows(path) == [{"prompt": 'a, "b"\nc', "answer": "007"}, {"prompt": "NA", "answer": ""}]


def test_a_directory_is_its_files_in_the_order_of_their_names(tmp_path):
    for name, rows in (("b", ROWS[1:]), ("a", ROWS[:1])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "README.md").write_text("what this is")
    (tmp_path / ".hidden.jsonl").write_text("not this")
    assert read_rows(tmp_path) == ROWS
    parquet(tmp_path / "snapshot" / "train-0.parquet", ROWS[:2])
    parquet(tmp_path / "snapshot" / "train-1.parquet", ROWS[2:])
    assert read_rows(tmp_path / "snapshot") == ROWS


def test_a_saved_data_set(tmp_path):
    table = datasets.Dataset.from_list(ROWS)
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=table, test=table.select([2])).save_to_disk(tmp_path / "two")
    assert read_rows(tmp_path / "one") == ROWS
    assert read_rows(f"{tmp_path / 'two'}@train") == ROWS
    assert read_rows(f"{tmp_path / 'two'}@test") == ROWS[2:]
    for name, said in (("two", "holds the splits train, test; name one"), ("two@dev", "holds the splits train, test")):
        with pytest.raises(UsageError, match=said):
            read_rows(tmp_path / name)
    with pytest.raises(UsageError, match="without splits; leave out @train"):
        read_rows(f"{tmp_path / 'one'}@train")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_a_hub_data_set_goes_through_the_library(tmp_path, offline):
    """The same call on a directory laid out as the hub's are: split, columns and nesting come out as they went in."""
    parquet(tmp_path / "repo" / "data" / "train-00000-of-00001.parquet", ROWS)
    parquet(tmp_path / "repo" / "data" / "test-00000-of-00001.parquet", ROWS[:1])
    assert from_hub(str(tmp_path / "repo"), None, "train") == ROWS
    assert from_hub(str(tmp_path / "repo"), None, "test") == ROWS[:1]


def test_names_of_hub_data_sets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, split: asked.append((*a, split)) or ROWS)
    for name in ("openai/gsm8k:main@test", "openai/gsm8k", "a-b/c_d.e@train[:10]"):
        assert read_rows(name) == ROWS
    assert asked == [
        ("openai/gsm8k", "main", "test"),
        ("openai/gsm8k", None, "train"),
        ("a-b/c_d.e", None, "train[:10]"),
    ]


def test_a_hub_data_set_that_cannot_be_had(tmp_path, offline, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no file or directory nobody/nothing here, and as a data set on the hub .*:"):
        read_rows("nobody/nothing")


def test_places_that_hold_no_prompts(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "a.txt").write_text("a")
    (tmp_path / "mixed" / "a.jsonl").write_text('{"prompt": "a"}')
    (tmp_path / "p.json").write_text("[]")
    (tmp_path / "bad.parquet").write_text("no")
    for name, said in (
        ("empty", "holds no .jsonl, .txt, .csv, .parquet files"),
        ("mixed", "holds .jsonl and .txt files"),
        ("mixed@train", "holds files, not splits"),
        ("p.json", "prompts are read from .jsonl"),
        ("bad.parquet", "is not a parquet file"),
        ("none.csv", "no prompt file"),
        ("nothing", 'no prompt file or directory .*"owner/name"'),
    ):
        with pytest.raises(UsageError, match=said):
            read_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt,answer\na\n", "line 2: 1 cells under 2 column names"),
        ("prompt,prompt\na,b\n", "a column name stands twice"),
        ('prompt\n"a', "line 2: not CSV"),
        ("prompt\n", "there are no prompts"),
        ("text\na\n", "no column 'prompt'; it has text"),
    ],
)
def test_csv_that_cannot_be_meant(tmp_path, text, said):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_prompts(tmp_path / "p.csv")
