"""scikit-learn: forests grown one after another on two threads."""

import os
import sys
import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

steps = int(sys.argv[1])
x, y = make_classification(n_samples=400, n_features=20, random_state=0)
total = 0.0
for step in range(steps):
    forest = RandomForestClassifier(n_estimators=8, random_state=step, n_jobs=2).fit(x[::2], y[::2])
    total += float(forest.predict_proba(x[1::2])[:, 1].sum())
    print("step", step, float(np.float64(total)).hex(), flush=True)
    if step > 8 and not os.path.exists("hurry"):
        time.sleep(4)
print("end")
