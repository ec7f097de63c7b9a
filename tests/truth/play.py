"""Inside a cluster: plays combinations and writes what came of each, a line of JSON each.

    python3 -m truth.play PLAN RESULTS      (from tests/; PLAN is a JSON list of [held, launch, words] or, for the
                                             plugin left off, [held, launch, null])
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import axes

HERE = Path(__file__).resolve().parent
PROBE = HERE.parent.parent / "target/release/cuda-probe"
PLUGSTACK = Path(os.environ.get("SLURM_CONF", "/slurm.conf")).with_name("plugstack.conf")
CONTROLLER = PLUGSTACK.parent.with_name("log") / "slurmctld.log"
PATIENCE = 60


def main(plan, results):
    plan = json.loads(Path(plan).read_text())
    with open(results, "w") as out:
        for held in axes.HELD:
            with neighbour() if held else contextlib.nullcontext():
                for step in (step for step in plan if step[0] == held):
                    json.dump(play(*step), out)
                    out.write("\n")
                    out.flush()


@contextlib.contextmanager
def neighbour():
    """Another job that holds the first three cards of n1."""
    job = subprocess.Popen(["srun", "-w", "n1", "-n1", "--gres=gpu:3", "sleep", "100000"], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: text("squeue", "-h", "-t", "R"))
        yield
    finally:
        job.terminate()
        job.wait()
        wait_for(lambda: not text("squeue", "-h"))


def play(held, launch, words):
    """One combination; with `words` None the same launch twice, without the option and without the plugin at all."""
    result = {"held": held, "launch": launch, "words": words}
    if words is not None:
        return result | launched(launch, axes.option(launch, words))
    unasked = launched(launch, "")
    ours = PLUGSTACK.read_text()
    try:
        PLUGSTACK.write_text("")
        without = launched(launch, "")
    finally:
        PLUGSTACK.write_text(ours)
    return result | unasked | {"without": without}


def launched(launch, option):
    """Launches it: {"command", "status", "log", "out", "tasks", "job", "steps"}."""
    how = axes.LAUNCHES[launch]
    before = CONTROLLER.stat().st_size
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        said = f"{folder}/said"
        witness = f"{HERE}/witness {PROBE} {said}"
        command = COMMANDS[how.kind](how.arguments, option, witness, folder)
        try:
            done = subprocess.run(command, shell=True, text=True, capture_output=True, timeout=PATIENCE,
                                  stdin=subprocess.DEVNULL, env=environment())
            status, words, out = done.returncode, done.stderr, done.stdout
        except subprocess.TimeoutExpired:
            status, words, out = "hung", text("squeue", "--steps") + "\n" + text("squeue", "-o", "%i %j %T %r"), ""
            for name in ("witness", "job.sh"):  # not the neighbour
                subprocess.run(["scancel", f"--name={name}"])
        log = words + "".join(log.read_text() for log in sorted(Path(folder).glob("log*")))
        return {"command": command, "status": status, "log": log, "out": out, "job": "\n".join(lines(f"{said}.job")),
                "tasks": [json.loads(line) for line in lines(said)], "steps": allocated(before)}


def allocated(before):
    """What slurmctld gave each step since its log was that long, which `scontrol` does not tell: "12.0" → "3-5"."""
    with open(CONTROLLER, errors="replace") as log:
        log.seek(before)
        return dict(re.findall(r"Step Alloc GRES:\n.*StepId=(\S+) .*\n(?:.*\n)??.*gres_bit_alloc\[0\]:(\S+) of", log.read()))


def environment():
    """The same in every run, so that two environments can be compared."""
    keep = ("PATH", "HOME", "SLURM_CONF", "LANG")
    return {name: os.environ[name] for name in keep if name in os.environ}


def _srun(arguments, option, witness, _):
    return f"srun -w n1 {option} {arguments} {witness}"


def _script(lines, options, folder):
    Path(folder, "job.sh").write_text("#!/bin/sh\n" + lines)
    return f"sbatch -W -w n1 {options} --output={folder}/log {folder}/job.sh"


def _sbatch(arguments, option, witness, folder):
    return _script(f"srun {witness}\n", f"{option} {arguments}", folder)


def _batch(arguments, option, witness, folder):
    return _script(f"{witness}\n", f"{option} {arguments}", folder)


def _overlap(arguments, option, witness, folder):
    steps = [f"srun --overlap {option} {arguments} {witness} 6 2>{folder}/log.{number} &\n" for number in (1, 2)]
    return _script("".join(steps) + "wait\n", arguments, folder)


def _apart(arguments, option, witness, folder):
    gres = ("", "") if "gpus-per-task" in arguments else ("--gres=gpu:1", "--gres=gpu:2")
    first, second = (f"srun --exact {option} {arguments} -n{number} {gres[number - 1]} {witness} 3 2>{folder}/log.{number}"
                     for number in (1, 2))
    wait = f"while [ ! -s {folder}/said ] && kill -0 $first 2>/dev/null; do sleep 0.05; done"
    return _script(f"{first} &\nfirst=$!\n{wait}\n{second}\nstatus=$?\nwait $first\nexit $status\n",
                   "-n3 --gres=gpu:3", folder)


def _het(arguments, option, witness, folder):
    # srun mixes the lines of two components when the machine is busy.
    parts = enumerate(arguments.split(" : "), 1)
    first, second = (f"-w n{node} --error={folder}/log.{node} {option} {part} {witness}" for node, part in parts)
    return f"srun {first} : {second}"


COMMANDS = {"srun": _srun, "sbatch": _sbatch, "batch": _batch, "overlap": _overlap, "apart": _apart, "het": _het}


def lines(file):
    return Path(file).read_text().splitlines() if Path(file).exists() else []


def text(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("truth: the neighbour's job neither starts nor ends")
        time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
