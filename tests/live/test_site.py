"""What plugstack.conf says: a default for jobs that say nothing, and a plugin whose answers Slurm ignores."""
# cluster Default: --node tests/nodes/inv8p.json --plugstack default=single
# cluster Optional: --node tests/nodes/inv8p.json
# cluster Unknown: --node tests/nodes/inv8p.json --plugstack defalt=single
import os
import unittest
from pathlib import Path

from harness import Held, run, srun

CARD = [f"GPU-00000000-0008-4000-8000-00000000000{rank}" for rank in range(8)]
STEP = [CARD[0], CARD[1], CARD[5]]
PLUGSTACK = Path(os.environ["SLURM_CONF"]).with_name("plugstack.conf")


class Default(unittest.TestCase):
    def test_a_job_that_says_nothing_gets_the_sites_words(self):
        other = Held(3)
        try:
            tasks, _ = srun("-n3", "--gres=gpu:3")
            self.assertEqual([task.visible for task in tasks], [[card] for card in STEP])
            tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=all")
            self.assertEqual([task.visible for task in tasks], [STEP] * 3)
            tasks, log = srun("-n3", "--gres=gpu:3", "--gpu-align=off")
            self.assertNotIn("GPU_ALIGN_VERSION", tasks[0].env)
            self.assertEqual(log, "")
        finally:
            other.end()


class Optional(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        PLUGSTACK.write_text(PLUGSTACK.read_text().replace("required", "optional"))

    def test_strict_ends_the_task_all_the_same(self):
        done = run("srun", "-n1", "--gres=gpu:2", "--gpu-align=map=5,strict", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")
        self.assertIn("map= asks for device 5", done.stderr)
        quiet = run("srun", "-n1", "--gres=gpu:2", "--gpu-align=map=5,strict,print=off", "echo", "ran")
        self.assertIn("map= asks for device 5", quiet.stderr)
        self.assertNotIn("drain", run("sinfo", "-h", "-o", "%T").stdout)

    def test_a_wrong_word_of_the_option_is_refused_all_the_same(self):
        done = run("srun", "--gres=gpu:1", "--gpu-align=singel", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout, "")

    def test_a_wrong_word_of_the_variable_is_said(self):
        done = run("srun", "--gres=gpu:1", "echo", "ran", env={"SLURM_GPU_ALIGN": "singel"})
        self.assertIn("SLURM_GPU_ALIGN: 'singel' is not a word of gpu-align", done.stderr)


class Unknown(unittest.TestCase):
    def test_an_unknown_key_is_named_and_drains_no_node(self):
        done = run("srun", "--gres=gpu:1", "echo", "ran")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("plugstack.conf: 'defalt=single' is not a key of gpu-align", done.stderr)
        self.assertNotIn("drain", run("sinfo", "-h", "-o", "%T").stdout)


if __name__ == "__main__":
    unittest.main()
