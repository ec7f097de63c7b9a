"""`gpu-align` inside the job: show, verify, exec, pick, doctor, where a real Slurm put the process.

Four cards with equal minors and ranks. One of them is held by another job, so that a step's positions do not start at
0. A mismatch has to be found by `verify`, with the value before and after and the hand that changed it.
"""
# cluster: --node tests/nodes/tidy4.json
# cluster: --node tests/nodes/tidy4.json --user nobody
import json
import os
import subprocess
import textwrap
import unittest
from pathlib import Path

from harness import ROOT, Held, NODE, open_folder, run, wait_for

PROGRAM = str(ROOT / "target/release/gpu-align")
CARD = [card["uuid"] for card in NODE["cards"]]
AS_ROOT = os.geteuid() == 0
# The files that a login of the user who runs the tests reads are the machine's, not the tests'.
QUIET = ["--gpu-align=print=off"]


def setUpModule():
    global other
    other = Held(1)


def tearDownModule():
    other.end()


def bash(script, *options, env=None):
    """A step of one task that runs a script; $P is the program."""
    return run("srun", "-n1", *options, "bash", "-c", script, env={"P": PROGRAM, **(env or {})})


def checks(text):
    """What `verify --json` said: name -> (state, sentence), and its exit status."""
    said = json.loads(text)
    return {check["name"]: (check["state"], check["says"]) for check in said["checks"]}, said["exit"]


def verify(script, *options, env=None):
    done = bash(script, *options, env=env)
    return checks(done.stdout)


class Show(unittest.TestCase):
    def test_a_task_sees_its_cards_by_all_their_names(self):
        done = bash("$P show --json", "--gres=gpu:2", *QUIET)
        said = json.loads(done.stdout)
        self.assertEqual([d["uuid"] for d in said["devices"]], CARD[1:3])
        self.assertEqual([(d["cuda"], d["card"], d["here"], d["minor"]) for d in said["devices"]], [(0, 1, 0, 1), (1, 2, 1, 2)])
        self.assertEqual([d["said_by"] for d in said["devices"]], [["kernel", "Slurm", "CUDA"]] * 2)
        self.assertEqual(said["unseen"], [])

    def test_the_tasks_of_a_step_are_gathered_into_one_table(self):
        done = run("srun", "-n3", "--gres=gpu:3", *QUIET, PROGRAM, "show", "--step", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 1)
        self.assertEqual([(task["rank"], task["own"]) for task in said["said"]], [(0, 0), (1, 1), (2, 2)])
        self.assertEqual(said["missing"], [])
        alone = run(PROGRAM, "show", "--step")
        self.assertEqual(alone.returncode, 2)
        self.assertIn("start it with srun", alone.stderr)

    @unittest.skipUnless(AS_ROOT, "only root can become another user")
    def test_a_stranger_who_took_the_gatherers_place_is_named(self):
        squat = textwrap.dedent("""\
            import os, socket, sys, time
            os.setuid(65534)
            taken = socket.socket(socket.AF_UNIX)
            taken.bind("\\0" + sys.argv[1])
            taken.listen()
            open(sys.argv[2] + "/taken", "w").close()
            time.sleep(100)
            """)
        with open_folder() as folder:
            script = textwrap.dedent(f"""\
                if [ $SLURM_LOCALID = 0 ]; then
                    /usr/bin/python3 -c "$SQUAT" gpu-align/0/$SLURM_JOB_ID.$SLURM_STEP_ID/$SLURMD_NODENAME {folder} & squatter=$!
                fi
                until [ -f {folder}/taken ]; do sleep 0.05; done
                $P show --step > {folder}/$SLURM_LOCALID.out 2> {folder}/$SLURM_LOCALID.err
                echo $? > {folder}/$SLURM_LOCALID.new; mv {folder}/$SLURM_LOCALID.new {folder}/$SLURM_LOCALID.rc
                if [ $SLURM_LOCALID = 0 ]; then
                    until [ -f {folder}/1.rc ]; do sleep 0.05; done
                    kill $squatter
                fi
                """)
            run("srun", "-n2", "--gres=gpu:2", *QUIET, "bash", "-c", script, env={"P": PROGRAM, "SQUAT": squat})
            for local in (0, 1):
                read = lambda what: Path(folder, f"{local}.{what}").read_text()
                self.assertEqual((read("rc"), read("out")), ("2\n", ""))
                self.assertRegex(read("err"), r"\Agpu-align: user 65534 holds the socket on which local rank 0 .*\n\Z")

    def test_fc_47_a_session_that_was_adopted_has_the_cgroup_but_not_the_variables(self):
        adopted = 'exec env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID" $P show --export'
        done = bash(adopted, "--gres=gpu:2", *QUIET)
        self.assertEqual(done.stdout, f"export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES={CARD[1]},{CARD[2]}\n")
        # Not adopted: every card of the node opens.
        done = run("env", "-i", f"PATH={os.environ['PATH']}", "SLURM_JOB_ID=1", PROGRAM, "show", "--export")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("cannot tell which cards are yours", done.stderr)

    def test_a_task_without_cards_is_told_so(self):
        done = run("srun", "-n1", "--gpu-align", PROGRAM, "show")
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 of 4 cards can be used here", done.stdout)


class Verify(unittest.TestCase):
    def test_an_aligned_task_is_as_it_was_made(self):
        for words in ("all", "single", "rotate", "ids=index", "map=1,0"):
            said, code = verify("$P verify --json", "--gres=gpu:2", f"--gpu-align={words},print=off")
            self.assertEqual(code, 0, (words, said))
            self.assertEqual({state for state, _ in said.values()}, {"fine"}, (words, said))
        said, code = verify("$P verify --json", "--gpus-per-task=1", *QUIET)
        self.assertEqual(code, 0, said)

    def test_fc_30_every_spelling(self):
        u = CARD[1]
        rows = [("0,1", 2, 0), ("", 0, 1), ("-1", 0, 1), ("NoDevFiles", 0, 1), ("none", 0, 1), ("0,2,-1,1", 2, 1), ("0,1,9,2", 2, 1),
                ("0,1,2,0", 0, 1), ("1x,2yz", 2, 0), ("0,1,", 2, 0), ("0, 1", 2, 0), (u, 1, 0), ("GPU-00000000-0004-4000-8000", 0, 1),
                (f"{u},{u}", 0, 1), (f"{u},0", 1, 1), (f"0,{u}", 1, 1), (u.lower(), 0, 1)]
        script = "unset ${!GPU_ALIGN_*}; export CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
        script += "".join(f"CUDA_VISIBLE_DEVICES='{value}' $P verify --json | tr -d '\\n'; echo\n" for value, _, _ in rows)
        script += "env -u CUDA_VISIBLE_DEVICES $P verify --json | tr -d '\\n'; echo\n"
        done = bash(script, "--gres=gpu:3", *QUIET)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(rows) + 1, done.stderr)
        for (value, usable, code), line in zip(rows, lines):
            said, exit_code = checks(line)
            self.assertEqual(exit_code, code, (value, said))
            self.assertEqual(said["cuda"][1].count("cuda:"), usable, (value, said["cuda"]))
            self.assertEqual(said["list"][0], "wrong" if code else "fine", (value, said["list"]))
            if usable:
                self.assertTrue(said["list"][1].startswith(f"{usable} of "), said["list"])
        self.assertEqual(checks(lines[-1])[1], 0)
        # The beginning of a UUID is a name where one card alone has it.
        said, code = verify("CUDA_VISIBLE_DEVICES=GPU-00000000-0004 $P verify --json", "--gres=gpu:1", *QUIET)
        self.assertEqual((said["list"][0], said["cuda"][1].count("cuda:"), code), ("fine", 1, 0), said)
        self.assertIn("is the beginning of a UUID", said["list"][1])

    def test_fc_31_a_users_export_in_the_batch_script(self):
        with open_folder() as folder:
            script = Path(folder, "job.sh")
            script.write_text(textwrap.dedent(f"""\
                #!/bin/bash
                export CUDA_VISIBLE_DEVICES=0,1,2,3
                {PROGRAM} verify --json | tr -d '\\n'; echo
                srun -n1 {PROGRAM} verify --json | tr -d '\\n'; echo
                """))
            done = run("sbatch", "-W", "-n1", "--gres=gpu:2", *QUIET, f"--output={folder}/out", script)
            lines = Path(folder, "out").read_text().splitlines()
            self.assertEqual(done.returncode, 0, (done.stderr, lines))
        said, code = checks(lines[0])
        self.assertEqual(code, 1)
        self.assertIn("-> 0,1,2,3; 2 usable cards", said["variable"][1])
        self.assertIn("the batch script:2 sets CUDA_VISIBLE_DEVICES=0,1,2,3", said["variable"][1])
        self.assertIn("index 2 is out of range: 2 cards can be opened, indices 0-1", said["list"][1])
        # Slurm and the plugin set the step's variable anew.
        self.assertEqual(checks(lines[1])[1], 0, lines[1])

    def test_fc_31_a_task_prolog_that_overrides(self):
        with open_folder() as folder:
            prolog = Path(folder, "prolog.sh")
            prolog.write_text("#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=7\n")
            prolog.chmod(0o755)
            said, code = verify("$P verify --json", "--gres=gpu:2", f"--task-prolog={prolog}", *QUIET)
        self.assertEqual(code, 1)
        self.assertIn(f"{CARD[1]},{CARD[2]} -> 7; 0 usable cards", said["variable"][1])
        self.assertIn("srun --task-prolog", said["variable"][1])

    @unittest.skipUnless(AS_ROOT, "the cluster's slurm.conf is root's")
    def test_fc_31_the_sites_task_prolog_is_named_with_its_line(self):
        conf = Path(os.environ["SLURM_CONF"])
        before = conf.read_text()
        with open_folder() as folder:
            prolog = Path(folder, "taskprolog")
            prolog.write_text("#!/bin/sh\n\necho export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n")
            prolog.chmod(0o755)
            conf.write_text(f"{before}TaskProlog={prolog}\n")
            try:
                run("scontrol", "reconfigure")
                wait_for(lambda: str(prolog) in run("scontrol", "show", "config").stdout, "the new configuration")
                changed = lambda: bash("echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2", *QUIET).stdout == "0\n"
                wait_for(changed, "the TaskProlog's start")
                said, code = verify("$P verify --json", "--gres=gpu:2", *QUIET)
            finally:
                conf.write_text(before)
                run("scontrol", "reconfigure")
        self.assertEqual(code, 1)
        self.assertIn(f"TaskProlog {prolog}:3 sets CUDA_VISIBLE_DEVICES=$SLURM_LOCALID", said["variable"][1])

    def test_fc_31_a_bashrc_that_overrides(self):
        with open_folder() as home:
            Path(home, ".bashrc").write_text("# mine\nexport CUDA_VISIBLE_DEVICES=3\nexport CUDA_DEVICE_ORDER=FASTEST_FIRST\n")
            Path(home, ".bash_profile").write_text(". ~/.bashrc\n")
            os.chmod(home, 0o755)
            # Two commands, so that the shell stays and can be named.
            script = f"{PROGRAM} verify --json; exit $?"
            done = run("srun", "-n1", "--gres=gpu:2", *QUIET, "bash", "-lc", script, env={"HOME": home})
            said, code = checks(done.stdout)
            self.assertEqual((code, done.returncode), (1, 1))
            self.assertIn("-> 3; 0 usable cards; the likely hand: '", said["variable"][1])
            self.assertIn("bash -lc", said["variable"][1])
            self.assertIn(f"{home}/.bashrc:2 sets CUDA_VISIBLE_DEVICES=3", said["variable"][1])
            self.assertIn("PCI_BUS_ID -> 'FASTEST_FIRST'", said["order"][1])
            doctor = run("srun", "-n1", "--gres=gpu:2", *QUIET, "bash", "-lc", f"{PROGRAM} doctor; exit $?", env={"HOME": home})
            self.assertEqual(doctor.returncode, 1)
            self.assertIn(f"CUDA_VISIBLE_DEVICES=3   <- {home}/.bashrc:2", doctor.stdout)

    def test_the_command_starts_only_if_nothing_is_wrong(self):
        options = ("--gres=gpu:2", *QUIET)
        done = bash("exec $P verify -- sh -c 'echo ran; exit 7'", *options)
        self.assertEqual((done.returncode, done.stdout), (7, "ran\n"))
        done = bash("CUDA_VISIBLE_DEVICES=5 exec $P verify -- echo ran", *options)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("gpu-align: WRONG: list: 0 of 1 entry usable", done.stderr)
        done = bash("CUDA_VISIBLE_DEVICES=5 exec $P verify --warn -- echo ran", *options)
        self.assertEqual((done.returncode, done.stdout), (0, "ran\n"))
        done = bash("exec $P verify -- /no/such/program", *options)
        self.assertEqual(done.returncode, 127)

    def test_the_expected_cards(self):
        for expected, code in [("rank=1,2", 0), ("rank=2,1", 1), (f"{CARD[1]},{CARD[2]}", 0), (CARD[1], 1)]:
            done = bash(f"exec $P verify --expect {expected}", "--gres=gpu:2", *QUIET)
            self.assertEqual(done.returncode, code, (expected, done.stdout))

    def meet(self, tasks, *options):
        """Tasks whose workers all use the first card of the step; what `verify` says in each, and of its worker."""
        node = json.loads(json.dumps(NODE))
        with open_folder() as folder:
            script = textwrap.dedent(f"""\
                sleep 100 & worker=$!
                echo $worker > {folder}/$SLURM_PROCID.new; mv {folder}/$SLURM_PROCID.new {folder}/$SLURM_PROCID.pid
                while ! [ -f {folder}/node.json ]; do sleep 0.05; done
                SIM_NODE={folder}/node.json $P verify --json > {folder}/$SLURM_PROCID.said
                SIM_NODE={folder}/node.json $P verify --pid $worker > {folder}/$SLURM_PROCID.other
                touch {folder}/$SLURM_PROCID.done
                while [ $(ls {folder} | grep -c done) -lt {tasks} ]; do sleep 0.05; done
                kill $worker
                """)
            job = subprocess.Popen(["srun", f"-n{tasks}", *options, "bash", "-c", script], env={**os.environ, "P": PROGRAM})
            pids = lambda: [int(file.read_text()) for file in Path(folder).glob("*.pid")]
            wait_for(lambda: len(pids()) == tasks, "the workers' start")
            node["cards"][1]["processes"] = [{"pid": pid, "memory": 1 << 30} for pid in pids()]
            Path(folder, "node.tmp").write_text(json.dumps(node))
            os.chmod(Path(folder, "node.tmp"), 0o644)
            os.rename(Path(folder, "node.tmp"), Path(folder, "node.json"))
            self.assertEqual(job.wait(60), 0)
            read = lambda rank, what: Path(folder, f"{rank}.{what}").read_text()
            return [(*checks(read(rank, "said")), read(rank, "other")) for rank in range(tasks)]

    def test_launchers_whose_workers_meet_on_one_card(self):
        """accelerate in Slurm tasks, each of which starts a worker on cuda:0."""
        for tasks, mode in ((4, "all"), (3, "single")):
            for said, code, other in self.meet(tasks, "--gres=gpu:3", f"--gpu-align={mode},print=off"):
                self.assertEqual((code, said["sharing"][0]), (1, "wrong"), (mode, said))
                for rank in range(tasks):
                    self.assertIn(f"rank {rank} (pid ", said["sharing"][1])
                self.assertIn("holds 0000:31:00.0", other)

    def test_rule_5_two_tasks_on_the_only_card_are_meant(self):
        for mode in ("all", "rotate", "single", "off"):
            for said, code, _ in self.meet(2, "--gres=gpu:1", f"--gpu-align={mode},print=off"):
                self.assertEqual((code, said["sharing"][0]), (0, "note"), (mode, said))
                self.assertIn("rank 0 (pid ", said["sharing"][1])
                self.assertIn("there are more tasks than cards", said["sharing"][1])

    def test_rule_5_tasks_that_the_user_put_on_one_card_are_meant(self):
        for options in (["--gpu-bind=single:2", "--gpu-align=off"], ["--gpu-bind=single:2", *QUIET], ["--gpu-align=single,map=0,print=off"]):
            for said, code, _ in self.meet(2, "--gres=gpu:2", *options):
                self.assertEqual((code, said["sharing"][0]), (0, "note"), (options, said))
                self.assertIn("it was given to each of them", said["sharing"][1])

    @unittest.skipUnless(AS_ROOT, "a mount namespace needs root")
    def test_fc_38_a_container_with_half_of_the_device_nodes(self):
        script = textwrap.dedent(f"""\
            set -e
            mount -t tmpfs tmpfs /mnt
            for node in null zero urandom nvidiactl nvidia-uvm nvidia1; do cp -a /dev/$node /mnt/; done
            mount --move /mnt /dev
            set +e
            $P verify --json | tr -d '\\n'; echo
            CUDA_VISIBLE_DEVICES=1 $P verify --json | tr -d '\\n'; echo
            $P show --json | tr -d '\\n'; echo
            """)
        done = run("srun", "-n1", "--gres=gpu:2", *QUIET, "unshare", "-m", "bash", "-c", script, env={"P": PROGRAM})
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 3, done.stderr)
        said, code = checks(lines[0])
        self.assertEqual(code, 1)
        self.assertIn(f"1 of 2 entries usable: CUDA's list ends at entry 1 '{CARD[2]}'", said["list"][1])
        self.assertIn("this process may not open it", said["list"][1])
        self.assertIn(f"and not {CARD[2]}, which gpu-align gave", said["kernel"][1])
        said, code = checks(lines[1])
        self.assertIn("1 card can be opened, index 0", said["list"][1])
        self.assertEqual([d["uuid"] for d in json.loads(lines[2])["devices"]], [CARD[1]])

    def test_another_process_is_checked_by_what_it_was_started_with(self):
        # Until the shell's copy has become sleep, /proc shows the shell's environment.
        started = "until tr '\\0' '\\n' < /proc/$!/environ | grep -qx CUDA_VISIBLE_DEVICES=9; do sleep 0.01; done"
        script = f"CUDA_VISIBLE_DEVICES=9 sleep 100 & {started}; $P verify --json --pid $!; kill $!"
        said, code = verify(script, "--gres=gpu:2", *QUIET)
        self.assertEqual(code, 1)
        self.assertIn("-> 9; 0 usable cards", said["variable"][1])

    @unittest.skipUnless(AS_ROOT, "a mount namespace needs root")
    def test_a_process_of_another_task_or_container_is_not_judged_by_ones_own_view(self):
        job = subprocess.Popen(["srun", "-n1", "--gres=gpu:2", *QUIET, "sh", "-c", "echo $$; exec sleep 100"], stdout=subprocess.PIPE, text=True)
        try:
            pid = int(job.stdout.readline())
            wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), "the task's start")
            # From outside of the step all cards of the node open.
            said, code = checks(run(PROGRAM, "verify", "--json", "--pid", pid).stdout)
        finally:
            job.terminate()
            job.wait()
            job.stdout.close()
        self.assertEqual(code, 2, said)
        self.assertEqual((said["kernel"][0], said["cuda"][0]), ("unseen", "unseen"))
        self.assertIn(f"process {pid} is in another cgroup", said["kernel"][1])
        self.assertNotIn("list", said)
        moved = "until [ $(readlink /proc/$!/ns/mnt) != $(readlink /proc/self/ns/mnt) ]; do sleep 0.01; done"
        said, code = verify(f"unshare -m sleep 100 & {moved}; $P verify --json --pid $!; kill $!", "--gres=gpu:2", *QUIET)
        self.assertEqual(code, 2, said)
        self.assertIn("is in another mount namespace", said["kernel"][1])


class Exec(unittest.TestCase):
    def ranks(self, launcher, words, *options):
        script = f"for r in 0 1 2; do {launcher} $P exec {words} -- printenv CUDA_VISIBLE_DEVICES; done"
        return bash(script, *options).stdout.split()

    def test_fc_20_ranks_that_mpirun_started_in_one_task(self):
        launcher = "OMPI_COMM_WORLD_LOCAL_RANK=$r OMPI_COMM_WORLD_LOCAL_SIZE=3"
        self.assertEqual(self.ranks(launcher, "single", "--gres=gpu:3", "--gpu-align=off"), CARD[1:4])
        self.assertEqual(self.ranks(launcher, "single,ids=index", "--gres=gpu:3", "--gpu-align=off"), ["0", "1", "2"])
        torchrun = "LOCAL_RANK=$r LOCAL_WORLD_SIZE=3"
        self.assertEqual(self.ranks(torchrun, "all", "--gres=gpu:3", *QUIET), [",".join(CARD[1:4])] * 3)

    def test_a_rank_gets_no_card_that_its_launcher_was_not_given(self):
        launcher = "LOCAL_RANK=$r LOCAL_WORLD_SIZE=3"
        self.assertEqual(self.ranks(launcher, "single", "-n1", "--gres=gpu:3", "--gpu-align=single,map=2,print=off"), [CARD[3]] * 3)

    def test_ranks_that_slurm_bound_share_with_none(self):
        for words in ("all", "single"):
            for options in (["--gpus-per-task=1", "--gpu-align=off"], ["--gpus-per-task=1", *QUIET], ["--gres=gpu:2", "--gpu-align=single,print=off"]):
                done = run("srun", "-n2", *options, PROGRAM, "exec", words, "--", "printenv", "CUDA_VISIBLE_DEVICES")
                self.assertEqual(sorted(done.stdout.split()), CARD[1:3], (options, done.stderr))
                self.assertNotIn("share", done.stderr, options)
        done = run("srun", "-n2", "--gres=gpu:1", "--gpu-align=off", PROGRAM, "exec", "all", "--", "printenv", "CUDA_VISIBLE_DEVICES")
        self.assertEqual(done.stdout.split(), [CARD[1]] * 2)
        self.assertIn("gpu-align:   2 ranks share 1 card\n", done.stderr)

    def test_fc_20_a_rank_that_sruns_mpi_plugin_repeats_is_slurms(self):
        # As mpi/cray_shasta sets it.
        script = "PALS_LOCAL_RANKID=$SLURM_LOCALID exec $P exec single -- printenv CUDA_VISIBLE_DEVICES"
        done = run("srun", "-n2", "--gpus-per-task=1", *QUIET, "bash", "-c", script, env={"P": PROGRAM})
        self.assertEqual(sorted(done.stdout.split()), CARD[1:3], done.stderr)
        self.assertNotIn("share", done.stderr)

    def test_outside_of_slurm_no_step_is_named(self):
        outside = {"PATH": os.environ["PATH"], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        done = run("env", "-i", *(f"{name}={value}" for name, value in outside.items()), PROGRAM, "exec", "all", "--", "true")
        self.assertRegex(done.stderr, r"\Agpu-align: \S+ rank 0 local 0: cuda:0 is card 0 ")

    def test_what_it_does_not_know_it_asks_for(self):
        done = bash("LOCAL_RANK=1 exec $P exec single -- true", "--gres=gpu:2", *QUIET)
        self.assertEqual(done.returncode, 2)
        self.assertIn("give --local-size", done.stderr)
        done = bash("exec $P exec singel -- true", "--gres=gpu:2", *QUIET)
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean 'single'?", done.stderr)


class Doctor(unittest.TestCase):
    def test_a_healthy_task_has_nothing_to_fix(self):
        done = bash("exec $P doctor --json", "--gres=gpu:2", *QUIET, env={"HOME": "/nonexistent"})
        said = json.loads(done.stdout)
        self.assertEqual([f for f in said["findings"] if f["level"] != "note"], [])
        self.assertEqual(done.returncode, 0)

    def test_a_page_for_a_public_issue_names_no_card_and_no_one(self):
        done = bash("exec $P doctor --redact", "--gres=gpu:2", *QUIET, env={"HOME": "/home/ann", "USER": "ann"})
        self.assertNotRegex(done.stdout, "GPU-[0-9a-f]{8}-")
        self.assertNotRegex(done.stdout, r"\bann\b")
        self.assertIn("GPU-0000…0001", done.stdout)
        done = bash("CUDA_VISIBLE_DEVICES=GPU-00000000-0004 exec $P doctor --redact --json", "--gres=gpu:2", *QUIET)
        self.assertNotRegex(done.stdout, "GPU-[0-9a-f]{5}")
        self.assertIn("GPU-0000…", done.stdout)


if __name__ == "__main__":
    unittest.main()
