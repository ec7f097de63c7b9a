"""`srun --gpu-align` on eight cards with permuted minors, three of them held by another job.

gres.conf is File=/dev/nvidia[0-7] and devices are constrained: the step gets positions 3, 4 and 5,
that is minors 3, 4 and 5, that is cards 5, 0 and 1; in PCI order 0, 1 and 5.
"""
# cluster: --node tests/nodes/inv8p.json
# cluster: --node tests/nodes/inv8p.json --user nobody
import statistics
import time
import unittest
from pathlib import Path

from harness import WITNESS, Held, notes, open_folder, run, srun, table, testimony, wait_for

CARD = [f"GPU-00000000-0008-4000-8000-00000000000{rank}" for rank in range(8)]
C0, C1, C5 = CARD[0], CARD[1], CARD[5]
STEP = [C0, C1, C5]


def setUpModule():
    global other
    other = Held(3)


def tearDownModule():
    other.end()


def command(path):
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def leavings():
    """What a step could leave behind: slurmstepd processes, mounts, files, as one set."""
    steps = {path for path in Path("/proc").glob("[0-9]*/cmdline") if b"slurmstepd" in command(path)}
    files = {entry for folder in ("/dev/shm", "/run/gpu-align") for entry in Path(folder).glob("**/*")}
    return steps | files | set(Path("/proc/mounts").read_text().splitlines())


class MainJob(unittest.TestCase):
    def check(self, tasks, own, visible, index):
        """Every task's own card, visible list and cuda index; and it can open what it sees."""
        self.assertEqual([task.own for task in tasks], own)
        self.assertEqual([task.visible for task in tasks], visible)
        self.assertEqual([task.index for task in tasks], index)
        for task in tasks:
            self.assertLessEqual(set(task.visible), task.opens)
            self.assertEqual(task.env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")

    def test_all_is_what_a_bare_option_means(self):
        tasks, log = srun("-n3", "--gres=gpu:3", "--gpu-align")
        self.check(tasks, STEP, [STEP] * 3, [0, 1, 2])
        self.assertEqual(table(log), [("0", "0", "0", "0", C0), ("1", "1", "1", "1", C1), ("2", "2", "2", "5", C5)])
        self.assertEqual(log.count(" step "), 1)

    def test_single_shows_only_the_own_card(self):
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=single")
        self.check(tasks, STEP, [[C0], [C1], [C5]], [0, 0, 0])

    def test_rotate_shows_the_own_card_first(self):
        tasks, log = srun("-n3", "--gres=gpu:3", "--gpu-align=rotate")
        self.check(tasks, STEP, [[C0, C1, C5], [C1, C5, C0], [C5, C0, C1]], [0, 0, 0])
        self.assertIn("cuda:0, not cuda:LOCAL_RANK", log)

    def test_slurms_own_order(self):
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=all,order=slurm")
        self.check(tasks, [C5, C0, C1], [[C5, C0, C1]] * 3, [0, 1, 2])

    def test_an_explicit_map(self):
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=single,map=2,0,1")
        self.check(tasks, [C5, C0, C1], [[C5], [C0], [C1]], [0, 0, 0])

    def test_indices_count_the_reachable_cards(self):
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=all,ids=index")
        self.assertEqual([task.visible for task in tasks], [["0", "1", "2"]] * 3)
        self.assertEqual([task.own for task in tasks], STEP)
        self.assertTrue(all(task.opens == set(STEP) for task in tasks))

    def check_bound(self, *binding):
        """Each task holds one card by its cgroup, and that card is what it sees and what the log says."""
        tasks, log = srun("-n3", *binding, "--gpu-align")
        for task in tasks:
            self.assertEqual(task.opens, {task.own})
            self.assertEqual(task.visible, [task.own])
        self.assertEqual({task.own for task in tasks}, set(STEP))
        self.assertEqual([row[4] for row in table(log)], [task.own for task in tasks])
        return [task.own for task in tasks]

    def test_a_binding_per_task_is_kept_and_named(self):
        self.assertEqual(self.check_bound("--gpus-per-task=1"), [C5, C0, C1])

    def test_a_binding_by_map_is_kept_and_named(self):
        self.check_bound("--gres=gpu:3", "--gpu-bind=map_gpu:2,0,1")

    def test_no_binding_is_repaired_where_slurm_unsets_the_variable(self):
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-bind=none", "--gpu-align")
        self.check(tasks, STEP, [STEP] * 3, [0, 1, 2])

    def test_more_tasks_than_cards_share_in_blocks_and_say_so(self):
        tasks, log = srun("-n6", "--gres=gpu:3", "--gpu-align=single")
        self.check(tasks, [C0, C0, C1, C1, C5, C5], [[C0], [C0], [C1], [C1], [C5], [C5]], [0] * 6)
        self.assertEqual(notes(log), ["gpu-align:   6 tasks share 3 cards: 2 on each"])

    def test_fewer_tasks_than_cards_strand_none(self):
        tasks, _ = srun("-n2", "--gres=gpu:3", "--gpu-align=single")
        self.check(tasks, [C0, C5], [[C0, C1], [C5]], [0, 0])

    def test_a_lone_launcher_keeps_every_card(self):
        tasks, log = srun("-n1", "--gres=gpu:3", "--gpu-align")
        self.check(tasks, [C0], [STEP], [0])
        self.assertEqual([row[4] for row in table(log)], STEP)

    def test_sbatch_hands_the_option_to_the_sruns_inside(self):
        with open_folder() as folder:
            script = Path(folder, "job.sh")
            witness = " ".join(f"'{word}'" for word in WITNESS)
            script.write_text(f"#!/bin/sh\nsrun -n3 {witness} {folder}\n")
            done = run("sbatch", "-W", "-n3", "--gres=gpu:3", "--gpu-align=single", f"--output={folder}/out", script)
            self.assertEqual(done.returncode, 0, done.stderr)
            out = Path(folder, "out").read_text()
            tasks = testimony(folder)
        self.check(tasks, STEP, [[C0], [C1], [C5]], [0, 0, 0])
        # The batch step itself holds all three, in one task.
        self.assertIn(".batch: 1 task, 3 cards, mode single", out)

    def test_a_step_without_cards_is_left_alone_and_silent(self):
        tasks, log = srun("-n2", "--gpu-align")
        plain, plain_log = srun("-n2")
        for task in tasks:
            self.assertFalse([name for name in task.env if name.startswith(("CUDA_", "GPU_ALIGN_"))])
        self.assertEqual((log, plain_log), ("", ""))
        self.assertEqual(len(plain), 2)
        tasks, log = srun("-n1", "--gpu-align", env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
        self.assertEqual((tasks[0].env["CUDA_DEVICE_ORDER"], log), ("FASTEST_FIRST", ""))

    def test_the_plugin_in_srun_costs_no_visible_time(self):
        def seconds(*option):
            began = time.monotonic()
            run("srun", *option, "--help")
            return time.monotonic() - began
        # In turn, so that what else the machine does meets both alike.
        pairs = [(seconds("--gpu-align=single"), seconds()) for _ in range(15)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs))
        self.assertLess(ours / theirs, 1.5, f"{ours * 1e3:.1f} ms with the option, {theirs * 1e3:.1f} ms without")

    def test_an_empty_variable_asks_for_nothing(self):
        tasks, log = srun("-n1", "--gres=gpu:1", env={"SLURM_GPU_ALIGN": ""})
        self.assertNotIn("GPU_ALIGN_VERSION", tasks[0].env)
        self.assertEqual(log, "")

    def test_a_wrong_word_is_refused_before_anything_is_submitted(self):
        before = run("squeue", "-h", "-a", "-o", "%A").stdout
        for command in (["srun", "true"], ["salloc", "true"], ["sbatch", "--wrap", "true"]):
            done = run(command[0], "--gres=gpu:1", "--gpu-align=singel", *command[1:])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("'singel' is not a word of gpu-align; did you mean 'single'?", done.stderr)
            by_variable = run(command[0], "--gres=gpu:1", *command[1:], env={"SLURM_GPU_ALIGN": "singel"})
            self.assertNotEqual(by_variable.returncode, 0)
            self.assertIn("SLURM_GPU_ALIGN: 'singel' is not a word", by_variable.stderr)
        self.assertEqual(run("squeue", "-h", "-a", "-o", "%A").stdout, before)

    def test_the_environment_asks_as_the_option_does_and_the_option_wins(self):
        asked = {"SLURM_GPU_ALIGN": "single"}
        tasks, _ = srun("-n3", "--gres=gpu:3", env=asked)
        self.check(tasks, STEP, [[C0], [C1], [C5]], [0, 0, 0])
        tasks, _ = srun("-n3", "--gres=gpu:3", "--export=NONE", env=asked)
        self.check(tasks, STEP, [[C0], [C1], [C5]], [0, 0, 0])
        tasks, _ = srun("-n3", "--gres=gpu:3", "--gpu-align=all", env=asked)
        self.check(tasks, STEP, [STEP] * 3, [0, 1, 2])

    def test_stdout_is_untouched_and_without_the_option_so_is_all_else(self):
        aligned = run("srun", "-n3", "--gres=gpu:3", "--gpu-align", "echo", "same")
        plain = run("srun", "-n3", "--gres=gpu:3", "echo", "same")
        self.assertEqual((aligned.stdout, plain.stdout), ("same\n" * 3, "same\n" * 3))
        self.assertEqual(plain.stderr, "")

    def test_slurms_own_variables_stay_as_they_are(self):
        volatile = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_TASK_PID", "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT",
                    "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_SPANK__SLURM_SPANK_OPTION_gpu_align_gpu_align")
        slurms = lambda task: {k: v for k, v in task.env.items() if k.startswith("SLURM") and k not in volatile}
        aligned, _ = srun("-n3", "--gpus-per-task=1", "--gpu-align")
        plain, _ = srun("-n3", "--gpus-per-task=1")
        self.assertEqual([slurms(task) for task in aligned], [slurms(task) for task in plain])

    def test_a_users_order_of_devices_is_replaced_and_named(self):
        tasks, log = srun("-n1", "--gres=gpu:1", "--gpu-align", env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
        self.assertEqual(tasks[0].env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
        self.assertIn("CUDA_DEVICE_ORDER was FASTEST_FIRST and is now PCI_BUS_ID", log)

    def test_a_line_a_task_json_lines_and_nothing(self):
        _, log = srun("-n3", "--gres=gpu:3", "--gpu-align=print=task", "--label")
        for rank, card in enumerate(STEP):
            self.assertRegex(log, f"(?m)^{rank}: gpu-align: n1 step [0-9.]+ rank {rank} local {rank}: cuda:{rank} .*{card}")
        _, log = srun("-n3", "--gres=gpu:3", "--gpu-align=print=json")
        self.assertEqual(log.count('{"gpu_align":'), 3)
        _, log = srun("-n3", "--gres=gpu:3", "--gpu-align=print=off")
        self.assertEqual(log, "")

    def test_the_block_is_in_local_task_0s_log_under_a_binding_too(self):
        _, log = srun("-n3", "--gpus-per-task=1", "--label", "--gpu-align")
        lines = [line for line in log.splitlines() if "gpu-align:" in line]
        self.assertEqual(len(lines), 6)
        self.assertTrue(all(line.startswith("0: ") for line in lines), log)

    def test_a_place_that_the_step_does_not_have_leaves_things_or_fails_if_strict(self):
        tasks, log = srun("-n1", "--gres=gpu:2", "--gpu-align=map=5")
        self.assertEqual(tasks[0].env["CUDA_VISIBLE_DEVICES"], "0,1")
        self.assertEqual(tasks[0].env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID")
        self.assertRegex(log, "CUDA_VISIBLE_DEVICES stays as Slurm made it: map= asks for device 5 and this task has 2")
        strict = run("srun", "-n1", "--gres=gpu:2", "--gpu-align=map=5,strict", "echo", "ran")
        self.assertNotEqual(strict.returncode, 0)
        self.assertEqual(strict.stdout, "")
        self.assertIn("map= asks for device 5", strict.stderr)
        self.assertNotIn("drain", run("sinfo", "-h", "-o", "%T").stdout)

    def test_a_task_that_crashes_leaves_nothing(self):
        before = leavings()
        done = run("srun", "-n3", "--gres=gpu:3", "--gpu-align", "sh", "-c", "kill -SEGV $$")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(len(table(done.stderr)), 3)
        wait_for(lambda: len(run("squeue", "-h").stdout.splitlines()) == 1, "the end of the crashed step")
        # What ends meanwhile is another test's.
        wait_for(lambda: leavings() <= before, "the step's processes, mounts and files to go")

    def test_a_program_inherits_no_file_of_ours(self):
        done = run("srun", "-n2", "--gres=gpu:2", "--gpu-align", "ls", "/proc/self/fd")
        plain = run("srun", "-n2", "--gres=gpu:2", "ls", "/proc/self/fd")
        self.assertEqual(done.stdout, "0\n1\n2\n3\n" * 2)
        self.assertEqual(plain.stdout, done.stdout)


if __name__ == "__main__":
    unittest.main()
