"""What the command line does, in five lines of Python.

    python examples/five_lines.py [--quick]

Minutes on a laptop; a second call resumes the run, or reads it where it is finished. `--quick` is a run too short to
show anything, for tests.
"""

import sys

import bcl

QUICK = {"size": "small", "dqn": {"steps": 400, "replay_initial": 64}, "curriculum": {"max_runs": 1}}
SETTINGS = QUICK if "--quick" in sys.argv else {}

OUT = "runs/five-lines"

if __name__ == "__main__":
    run = bcl.train("cartpole", recipe="bcl-mos-at", bootstrap="vanilla", out=OUT, **SETTINGS)
    policy = bcl.load(run)  # a PyTorch module: policy(observations) gives one score per action
    print(bcl.evaluate(run, attacks=["pgd-30", "ri-fgsm"], eps=[0.03, 0.06]))
    print(bcl.certify(run, eps=[0.005, 0.01], method="crown"))
    print(bcl.report(run))  # one page that opens anywhere
