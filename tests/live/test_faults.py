"""A task that another plugin ends before gpu-align's turn must not keep the others' report back."""
# cluster: --node tests/nodes/tidy4.json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import run, table, wait_for

PLUGSTACK = Path(os.environ["SLURM_CONF"]).with_name("plugstack.conf")

# Ends local rank 1 in task_init; before that, rank 0 is given time to be first or last.
KILLER = r"""
#include <slurm/spank.h>
#include <unistd.h>
SPANK_PLUGIN(killer, 1)
int slurm_spank_task_init(spank_t sp, int ac, char **av) {
    int id = -1;
    spank_get_item(sp, S_TASK_ID, &id);
    if (id == 1) { usleep(%d); return -1; }
    return 0;
}
"""


class Killed(unittest.TestCase):
    def launch(self, wait_us):
        """srun -n3 with a plugin in front of ours that ends rank 1 after `wait_us`."""
        ours = PLUGSTACK.read_text()
        with tempfile.TemporaryDirectory() as folder:
            plugin = Path(folder, "killer.so")
            os.chmod(folder, 0o755)
            subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", plugin], input=KILLER % wait_us,
                           text=True, check=True)
            PLUGSTACK.write_text(f"required {plugin}\n{ours}")
            try:
                return run("srun", "-n3", "--gres=gpu:3", "--no-kill", "--gpu-align=single", "sleep", "1")
            finally:
                PLUGSTACK.write_text(ours)

    def check(self, wait_us):
        done = self.launch(wait_us)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual([row[0] for row in table(done.stderr)], ["0", "2"], done.stderr)
        self.assertIn("3 tasks", done.stderr)
        wait_for(lambda: run("squeue", "-h").stdout == "", "the end of the step")
        self.assertNotIn("drain", run("sinfo", "-h", "-o", "%T").stdout)

    def test_a_task_that_dies_before_the_others_speak(self):
        self.check(0)

    def test_a_task_that_dies_after_the_others_spoke(self):
        self.check(300_000)


if __name__ == "__main__":
    unittest.main()
