"""README's table of symptoms: every answer that it quotes is what the command says, over the node that it speaks of."""
# cluster: --node tests/nodes/inv8p.json
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

from harness import NODE, ROOT, open_folder, run

PROGRAM = str(ROOT / "target/release/gpu-align")
QUIET = "--gpu-align=print=off"
BY_MPIRUN = 'for r in 0 1 2; do OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_LOCAL_SIZE=3 OMPI_COMM_WORLD_RANK=$r "$P" exec single -- true; done'
STAND_IN = """\
import sys, unittest.mock as mock
sys.path.insert(0, sys.argv[1])
import test_gpu_align_check as tests
with mock.patch.dict(sys.modules, {"torch": tests.torch([2], initialised=True)}):
    print("\\n".join(tests.load().look().lines()))
"""


def ask(*command, env=None):
    """All that a command says, its words one blank apart."""
    done = run(*command, env={"COLUMNS": "2000", "P": PROGRAM, **(env or {})})
    return " ".join((done.stdout + done.stderr).split())


def step(count, *command, env=None):
    return ask("srun", "-n1", f"--gres=gpu:{count}", QUIET, *command, env=env)


def changed(count, change):
    return step(count, "env", change, PROGRAM, "verify")


def wrong_card():
    with open_folder() as folder:
        prolog = Path(folder, "prolog.sh")
        prolog.write_text("#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=0\n")
        prolog.chmod(0o755)
        return ask("srun", "-n1", "--gres=gpu:2", QUIET, f"--task-prolog={prolog}", PROGRAM, "verify")


def in_a_container():
    """A step of two cards, of which the container mounts the second; its environment is its own."""
    mount = """
        mount -t tmpfs tmpfs /mnt
        for node in null zero urandom nvidiactl nvidia-uvm nvidia1; do cp -a /dev/$node /mnt/; done
        mount --move /mnt /dev
        env -u CUDA_VISIBLE_DEVICES "$P" show"""
    return step(2, "unshare", "-m", "sh", "-ec", mount)


def set_in_bashrc():
    with open_folder() as home:
        Path(home, ".bashrc").write_text("# mine\nexport CUDA_VISIBLE_DEVICES=3\n")
        return step(2, PROGRAM, "doctor", env={"HOME": home})


def busy():
    node = json.loads(json.dumps(NODE))
    with open_folder() as folder, subprocess.Popen(["sleep", "1000"]) as other:
        for card in node["cards"]:
            card["processes"] = [{"pid": other.pid, "memory": 630 << 20}] if card["minor"] == 0 else []
        held = Path(folder, "node.json")
        held.write_text(json.dumps(node))
        said = step(1, PROGRAM, "doctor", env={"SIM_NODE": str(held)})
        other.terminate()
    return said


# Symptom -> what asks.
ASKED = {
    "wrong card": wrong_card,
    "`invalid device ordinal`": lambda: changed(2, "CUDA_VISIBLE_DEVICES=0,3"),
    "`device_count()` is 1": lambda: ask("srun", "-n2", "--gpus-per-task=1", "--gpu-align", PROGRAM, "show"),
    "`device_count()` is 0": lambda: changed(1, "CUDA_VISIBLE_DEVICES=3") + ask("srun", "-n1", PROGRAM, "show"),
    "all ranks on card 0": lambda: ask("srun", "-n3", "--gres=gpu:3", QUIET, PROGRAM, "show", "--step"),
    "order differs from nvidia-smi": lambda: changed(2, "CUDA_DEVICE_ORDER=FASTEST_FIRST"),
    "container shows other numbers": in_a_container,
    "LOCAL_RANK mismatch": lambda: step(3, "sh", "-c", BY_MPIRUN),
    "variable set in .bashrc": set_in_bashrc,
    "set after import": lambda: ask(sys.executable, "-B", "-c", STAND_IN, ROOT / "tests/torch"),
    'device "busy"': busy,
    "mapping changed after a driver update": lambda: step(2, PROGRAM, "verify", "--expect", "rank=4,5"),
}


def rows():
    """Symptom -> (command, answer), as README's table has them."""
    table = (ROOT / "README.md").read_text().partition("| symptom | ask | an answer |\n")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    return {symptom: (command, answer) for symptom, command, answer in cells}


def quoted(answer):
    """The sentences that an answer quotes, as patterns: `…` stands for what was left out, a pid for any."""
    sentences = [text for text in re.findall(r"`([^`]+)`", answer) if len(text.split()) > 3]
    exact = [re.escape(text).replace("GPU\\-…", "GPU-[0-9a-f-]*").replace("…", ".*") for text in sentences]
    return [re.sub(r"pid\\ \d+", r"pid \\d+", text) for text in exact]


class Readme(unittest.TestCase):
    def test_every_symptom_has_a_command_and_the_answer_that_it_gives(self):
        self.assertEqual(list(rows()), list(ASKED))
        for symptom, (command, answer) in rows().items():
            with self.subTest(symptom):
                self.assertRegex(command, "gpu.align")
                sentences = quoted(answer)
                self.assertTrue(sentences, f"no answer is quoted: {answer}")
                said = ASKED[symptom]()
                for sentence in sentences:
                    self.assertRegex(said, sentence)


if __name__ == "__main__":
    unittest.main()
