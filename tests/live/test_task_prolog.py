"""gpu-align without the plugin, from the TaskProlog as shipped; and beside it, as a witness."""
# cluster Without: --no-plugin --node tests/nodes/inv8p.json
# cluster Unbound: --no-plugin --node tests/nodes/inv8p.json
# cluster Unbound: --slurm 24.11 --no-plugin --node tests/nodes/inv8p.json
# cluster Unbound: --slurm 26.05 --no-plugin --node tests/nodes/inv8p.json
# cluster Beside: --node tests/nodes/inv8p.json
# cluster Unused: --node tests/nodes/unused8.json
# cluster Strict: --no-plugin --node tests/nodes/unused8.json
# cluster Strict: --slurm 26.05 --no-plugin --node tests/nodes/unused8.json
import os
import unittest
from pathlib import Path

from harness import ROOT, Held, Installed, NodeFile, configure, drained, open_folder, run, srun

CARD = [f"GPU-00000000-0008-4000-8000-00000000000{rank}" for rank in range(8)]
STEP = [CARD[0], CARD[1], CARD[5]]


def setUpModule():
    global installed
    installed = Installed()


def tearDownModule():
    installed.end()


class Without(unittest.TestCase):
    """The step holds positions 3, 4 and 5: minors 3, 4 and 5, cards 5, 0 and 1."""

    @classmethod
    def setUpClass(cls):
        configure(f"TaskProlog={ROOT}/slurm/taskprolog.gpu-align")
        cls.other = Held(3)

    @classmethod
    def tearDownClass(cls):
        cls.other.end()

    def visible(self, *arguments, words=None):
        tasks, _ = srun(*arguments, env={"SLURM_GPU_ALIGN": words} if words else None)
        return [task.env["CUDA_VISIBLE_DEVICES"] for task in tasks], [task.own for task in tasks]

    def test_the_shipped_file_aligns_every_job(self):
        self.assertEqual(self.visible("-n3", "--gres=gpu:3"), ([",".join(STEP)] * 3, STEP))

    def test_the_users_words_go_over_the_sites(self):
        self.assertEqual(self.visible("-n3", "--gres=gpu:3", words="single"), (STEP, STEP))

    def test_a_binding_of_slurms_is_kept_and_named(self):
        own = [CARD[5], CARD[0], CARD[1]]
        self.assertEqual(self.visible("-n3", "--gpus-per-task=1"), (own, own))

    def test_a_line_a_task_on_stdout_where_it_is_asked_for(self):
        done = run("srun", "-n1", "--gres=gpu:1", "true", env={"SLURM_GPU_ALIGN": "print=task"})
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertIn(f"cuda:0 is card 5 0000:a1:00.0 {CARD[5]}", done.stdout)

    def test_stdout_is_the_programs_own_otherwise(self):
        done = run("srun", "-n3", "--gres=gpu:3", "echo", "hi")
        self.assertEqual((done.stdout, done.stderr), ("hi\n" * 3, ""))

    def test_a_step_without_gpus_is_left_alone(self):
        done = run("srun", "-n1", "env", env={"SLURM_GPU_ALIGN": "print=task"})
        self.assertNotIn("GPU_ALIGN_", done.stdout.replace("SLURM_GPU_ALIGN", ""))
        self.assertNotIn("CUDA_", done.stdout)

    def test_a_wrong_word_is_said_and_the_job_runs(self):
        done = run("srun", "-n1", "--gres=gpu:1", "env", env={"SLURM_GPU_ALIGN": "singel"})
        self.assertEqual(done.returncode, 0)
        self.assertIn("did you mean 'single'?", done.stdout)
        self.assertIn("CUDA_VISIBLE_DEVICES=0\n", done.stdout)

    def test_off(self):
        done = run("srun", "-n1", "--gres=gpu:1", "env", env={"SLURM_GPU_ALIGN": "off"})
        self.assertNotIn("CUDA_DEVICE_ORDER", done.stdout)


def beside(*lines, words="print=off"):
    """What a job prints after a TaskProlog with these lines in front of the witness."""
    with open_folder() as folder:
        script = f"{folder}/taskprolog"
        with open(script, "w") as file:
            file.write("\n".join(["#!/bin/sh", *lines, "gpu-align task-prolog --verify", ""]))
        os.chmod(script, 0o755)
        configure(f"TaskProlog={script}")
        return run("srun", "-n1", "--gres=gpu:2", f"--gpu-align={words}", "true").stdout


class Unbound(unittest.TestCase):
    """Whatever Slurm leaves of its lists under --gpu-bind=none: 22.05 unsets them."""

    def test_every_task_keeps_all_cards_of_its_step(self):
        configure(f"TaskProlog={ROOT}/slurm/taskprolog.gpu-align")
        other = Held(3)
        try:
            for count in [1, 2, 3]:
                tasks, _ = srun(f"-n{count}", "--gres=gpu:3", "--gpu-bind=none")
                seen = [(task.env.get("SLURM_STEP_GPUS"), task.env.get("CUDA_VISIBLE_DEVICES")) for task in tasks]
                self.assertEqual([visible for _, visible in seen], [",".join(STEP)] * count, seen)
        finally:
            other.end()


class Beside(unittest.TestCase):
    def test_nothing_changed(self):
        self.assertEqual(beside(), "")

    def test_the_same_cards_by_index(self):
        self.assertEqual(beside("export CUDA_VISIBLE_DEVICES=0,1"), "")

    def test_another_list(self):
        said = beside("export CUDA_VISIBLE_DEVICES=1,0")
        self.assertEqual(said.count("\n"), 1)
        self.assertIn(f"CUDA_VISIBLE_DEVICES was changed after launch: {CARD[6]},{CARD[7]} -> 1,0", said)

    def test_another_order(self):
        self.assertIn("CUDA_DEVICE_ORDER was changed after launch: PCI_BUS_ID -> FASTEST_FIRST",
                      beside("export CUDA_DEVICE_ORDER=FASTEST_FIRST"))


class Unused(unittest.TestCase):
    """The driver names no card before its first use, and nobody keeps a record: only the helper knows."""

    INDICES = "print=off,ids=index"

    def test_nothing_changed(self):
        self.assertEqual(beside(words=self.INDICES), "")

    def test_another_list(self):
        said = beside("export CUDA_VISIBLE_DEVICES=1,0", words=self.INDICES)
        self.assertIn(f"CUDA_VISIBLE_DEVICES was changed after launch: {CARD[6]},{CARD[7]} -> 1,0", said)

    def test_what_cannot_be_told_is_no_change(self):
        for lines, words in (((), ""), (("export CUDA_VISIBLE_DEVICES=1",), "-> 1; look for")):
            silenced = NodeFile(lambda node: node.update(nvml={"fault": "unknown"}))
            with open_folder() as folder:
                after = Path(folder, "node.json")
                after.write_text(silenced.after)
                try:
                    # Behind the plugin's back.
                    said = beside(f"cat {after} > {NodeFile.PATH}", *lines, words=self.INDICES)
                finally:
                    silenced.__exit__()
            self.assertIn(words, said)
            self.assertEqual(bool(said), bool(words), said)


class Strict(unittest.TestCase):
    """NVML is silent and there is no record: a doubt."""

    @classmethod
    def setUpClass(cls):
        configure(f"TaskProlog={ROOT}/slurm/taskprolog.gpu-align")

    def launch(self, words):
        with NodeFile(lambda node: node.update(nvml={"fault": "unknown"})):
            done = run("srun", "-n2", "--gres=gpu:2", "echo", "ran", env={"SLURM_GPU_ALIGN": words})
        self.assertFalse(drained())
        return done

    def test_a_doubt_fails_the_task_and_no_node(self):
        done = self.launch("strict")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("ran\n", done.stdout)

    def test_without_the_word_the_job_runs(self):
        done = self.launch("auto")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("ran\n"), 2)

    def test_without_a_doubt_too(self):
        done = run("srun", "-n2", "--gres=gpu:2", "echo", "ran", env={"SLURM_GPU_ALIGN": "strict"})
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n" * 2), done.stderr)


if __name__ == "__main__":
    unittest.main()
