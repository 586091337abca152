"""Rows as Parquet: those of the CSV file, with numbers as numbers."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cdmpp import cli
from cdmpp.errors import DataError
from cdmpp.report.report import Column, Report, Table, Total
from cdmpp.report.rows import write_csv, write_parquet


def table_of(*rows: dict) -> Report:
    return Report("title", tables=(Table("rows", (Column("a", "A"),), rows),))


def test_numbers_stay_numbers_and_unlike_values_become_texts(tmp_path):
    rows = (
        {"a": 1, "b": 2.5, "c": "=x", "d": ["p", 1], "e": True, "f": 1, "g": 2**70, "h": {"k": 1}, "i": None},
        {"a": 2, "b": 3, "c": None, "d": [], "e": None, "f": "many", "g": 1, "h": {}, "j": 7},
    )
    write_parquet([table_of(*rows)], tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.to_pylist() == [
        {"a": 1, "b": 2.5, "c": "=x", "d": "p; 1", "e": True, "f": "1", "g": str(2**70), "h": "{'k': 1}", "i": None,
         "j": None},
        {"a": 2, "b": 3.0, "c": None, "d": "", "e": None, "f": "many", "g": "1", "h": "{}", "i": None, "j": 7},
    ]  # fmt: skip
    assert [str(found.schema.field(name).type) for name in "abe"] == ["int64", "double", "bool"]
    write_csv([table_of(*rows)], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        assert next(csv.reader(file)) == found.column_names


def test_without_a_table_the_totals_are_written(tmp_path):
    write_parquet([Report("title", totals=(Total("step", 1.5, "s"), Total("kind", "ring")))], tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [
        {"name": "step", "value": "1.5", "unit": "s"}, {"name": "kind", "value": "ring", "unit": ""},
    ]  # fmt: skip


def test_an_empty_table_keeps_its_columns(tmp_path):
    write_parquet([table_of()], tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["a"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        write_parquet([table_of({"a": 1})], tmp_path)


def test_a_verb_writes_it_beside_the_csv_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["devices", "--csv", "out.csv", "--parquet", "out.parquet"]) == 0
    with Path("out.csv").open() as file:
        texts = list(csv.DictReader(file))
    table = pq.read_table("out.parquet")
    assert table.column_names == list(texts[0]) and table.num_rows == len(texts)
    assert [row["name"] for row in table.to_pylist()] == [row["name"] for row in texts]
    assert cli.main(["devices", "--csv", "out.csv", "--parquet", "out.csv"]) == 2
    assert "two outputs have the same file name" in capsys.readouterr().err
