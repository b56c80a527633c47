"""The script that one would write with pandas instead: every file through wandb's command line, one table, its means.

`python bench/plain_script.py OUT.parquet OUT.html FILE...`; a file's arm is the begin of its run's name.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

out, page, *files = sys.argv[1:]
frames = []
for file in files:
    inspect = ["wandb", "leet", "inspect", "--json", file]
    text = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in text.splitlines()]
    frame = pd.DataFrame([record["history"]["item"] for record in records if record["type"] == "history"])
    run = Path(file).parents[4].name
    frames.append(frame.assign(run=run, arm=run.rsplit("-", 1)[0]))
everything = pd.concat(frames, ignore_index=True)
everything.to_parquet(out)
everything.groupby("arm").mean(numeric_only=True).T.to_html(page)
