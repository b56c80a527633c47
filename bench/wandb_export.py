"""The script that one would write with wandb's own export instead: the mean step times of two runs, and their ratio.

`python bench/wandb_export.py ENTITY/PROJECT/ID ENTITY/PROJECT/ID`; the first step of each run is left out.
"""

import sys

import pandas as pd
import wandb

api = wandb.Api()
means = []
for name in sys.argv[1:]:
    history = pd.DataFrame(api.run(name).scan_history())
    means.append(history["timing_s/step"].dropna().iloc[1:].mean())
    print(f"{name}: {means[-1]:.2f} s a step")
print(f"{means[0] / means[1]:.2f} times as fast")
