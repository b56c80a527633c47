"""Local data and models are looked at before a stack is built for them."""

import copy

import pandas as pd
import pytest

from common.errors import UserError
from workflow.config.entry import require_readable
from workflow.config.plan import load_plan

from .two_arms import two_arms

RAW = two_arms()


def planned(data=None, model=None, **columns):
    """The default experiment with local data or a local model."""
    raw = copy.deepcopy(RAW)
    if data:
        raw["workload"]["data"] = {"source": str(data), **columns}
    if model:
        raw["workload"]["model"] = {"source": str(model)}
    return load_plan(raw)


def written(folder, suffix, **columns):
    """A file of these columns."""
    path, table = folder / f"rows{suffix}", pd.DataFrame(columns)
    if suffix == ".parquet":
        table.to_parquet(path)
    else:
        path.write_text("\n" + table.to_json(orient="records", lines=True), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path, suffix):
    path = written(tmp_path, suffix, question=["1+1?"], answer=["2"])
    require_readable(planned(path))
    require_readable(planned(path, test_source=str(path)))
    with pytest.raises(
        UserError, match=r"data\.answer_column is 'ground_truth', but .* has the columns question, answer"
    ):
        require_readable(planned(path, answer_column="ground_truth"))
    with pytest.raises(UserError, match=r"data\.prompt_column is 'qestion', .* \(did you mean question\?\)"):
        require_readable(planned(path, prompt_column="qestion"))


def test_the_validation_rows_need_the_columns_as_well(tmp_path):
    train = written(tmp_path, ".jsonl", question=["1+1?"], answer=["2"])
    test = written(tmp_path, ".parquet", question=["1+1?"])
    with pytest.raises(UserError, match=r"answer_column is 'answer', but '.*rows.parquet' has the columns question"):
        require_readable(planned(train, test_source=str(test)))


def test_a_folder_without_a_model_is_told_with_what_is_in_it(tmp_path):
    with pytest.raises(UserError, match=r"has no config\.json \(got: nothing\)"):
        require_readable(planned(model=tmp_path))
    (tmp_path / "snapshots").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json \(got: snapshots\); give the folder with config"):
        require_readable(planned(model=tmp_path))
    (tmp_path / "config.json").write_text("{}")
    require_readable(planned(model=tmp_path))
    with pytest.raises(UserError, match="is not a folder"):
        require_readable(planned(model=tmp_path / "config.json"))
