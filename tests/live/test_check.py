"""`gpu-align check` names what is wrong with a node, and nothing on one where all is well."""
# cluster Tidy: --node tests/nodes/tidy4.json --plugstack helper=/usr/bin/gpu-align
# cluster Permuted: --node tests/nodes/inv8p.json --constrain no --plugstack helper=/nowhere/gpu-align
import json
import os
import unittest
from pathlib import Path

from harness import ROOT, Installed, NodeFile, run, srun

ETC = Path(os.environ["SLURM_CONF"]).parent
RECORD = Path("/run/gpu-align-check/node.json")


def setUpModule():
    global installed
    installed = Installed()


def tearDownModule():
    installed.end()


def check(*arguments):
    done = run("gpu-align", "check", "--node=n1", *arguments)
    return done.returncode, done.stdout


class Changed:
    """A file of the configuration with another text."""

    def __init__(self, name, change):
        self.path = ETC / name
        self.change = change

    def __enter__(self):
        self.before = self.path.read_text()
        self.path.write_text(self.change(self.before))

    def __exit__(self, *_):
        self.path.write_text(self.before)


class Removed(Changed):
    """A file of the configuration that is not there."""

    def __init__(self, name):
        super().__init__(name, lambda text: text)

    def __enter__(self):
        super().__enter__()
        self.path.unlink()


class WithoutDriver:
    DRIVER, AWAY = Path("/proc/driver/nvidia"), Path("/proc/driver/away")

    def __enter__(self):
        self.DRIVER.rename(self.AWAY)

    def __exit__(self, *_):
        self.AWAY.rename(self.DRIVER)


# Slurm gives out cards where slurm.conf counts them and gres.conf names them.
UNCOUNTED = Changed("slurm.conf", lambda text: text.replace(" Gres=gpu:4", ""))
UNNAMED = Changed("gres.conf", lambda text: text.replace("NodeName=n1", "NodeName=n2"))


def prolog(node, *arguments):
    """What `gpu-align prolog` answers on a node; without a name as at boot."""
    command = ["gpu-align", "prolog", f"--record={RECORD}", *arguments]
    done = run("env", *(["-u", "SLURMD_NODENAME"] if node is None else [f"SLURMD_NODENAME={node}"]), *command)
    return done.returncode, done.stderr


class Tidy(unittest.TestCase):
    def assert_said(self, *words, code=1):
        found, said = check()
        self.assertEqual((found, said.count("\n")), (code, 1), said)
        for word in words:
            self.assertIn(word, said)

    def test_all_is_well(self):
        self.assertEqual(check(), (0, ""))
        self.assertEqual(check("--json"), (0, "[]\n"))

    def test_the_shipped_line_is_right_as_it_stands(self):
        shipped = (ROOT / "slurm/plugstack.conf.d/gpu-align.conf").read_text()
        plugin = ROOT / "target/release/libgpu_align.so"
        with Changed("plugstack.conf", lambda _: shipped.replace("optional spank_gpu_align.so", f"optional {plugin}")):
            self.assertEqual(check(), (0, ""))
            tasks, _ = srun("-n2", "--gres=gpu:2", "--gpu-align")
            self.assertEqual([task.index for task in tasks], [0, 1])

    def test_the_shipped_files_are_right_as_they_stand(self):
        for name in ("gres.conf", "cgroup.conf"):
            with Changed(name, lambda _: (ROOT / "slurm" / name).read_text()):
                self.assertEqual(check(), (0, ""))

    def test_as_a_user(self):
        done = run("su", "nobody", "-s", "/bin/sh", "-c", "gpu-align check --node=n1")
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_file_without_a_card(self):
        with Changed("gres.conf", lambda text: text.replace("[0-3]", "[0-2]") + "Name=gpu File=/dev/null\n"):
            code, said = check()
        self.assertEqual(code, 1)
        self.assertIn("has no card behind its File /dev/null; correct it", said)
        self.assertIn("card 0000:71:00.0 (/dev/nvidia3) is not configured", said)

    def test_persistence(self):
        with NodeFile(lambda node: node["cards"][1].update(persistence=False)):
            self.assert_said("card 0000:31:00.0: persistence is off", "nvidia-persistenced")

    def test_constrain_devices(self):
        with Changed("cgroup.conf", lambda text: text.replace("ConstrainDevices=yes", "")):
            self.assert_said("cgroup.conf: it lacks ConstrainDevices=yes")

    def test_nobody_does_what_cgroup_conf_says(self):
        with Changed("slurm.conf", lambda text: text.replace("task/cgroup,", "")):
            self.assert_said("slurm.conf: TaskPlugin lacks task/cgroup, so ConstrainDevices=yes does nothing")
            with Changed("gres.conf", lambda text: text.replace("[0-3]", "[3,2,1,0]")):
                self.assertIn("is not in PCI order and devices are not constrained", prolog("n1")[1])

    def test_a_plugin_without_a_path_lies_in_plugin_dir(self):
        def folder(path):
            return Changed("slurm.conf", lambda text: f"{text}PluginDir=/nowhere:{path}\n")

        plugin = ROOT / "target/release/libgpu_align.so"
        with Changed("plugstack.conf", lambda text: text.replace(str(plugin), plugin.name)):
            with folder(plugin.parent):
                self.assertEqual(check(), (0, ""))
            with folder("/tmp"):
                self.assert_said(f"plugstack.conf:1: {plugin.name} is not in PluginDir /nowhere:/tmp; install it")
            self.assert_said(f"could not look: {ETC}/plugstack.conf:1: {plugin.name} lies where Slurm was built",
                             code=2)

    def test_no_line_in_plugstack_conf(self):
        with Changed("plugstack.conf", lambda text: ""):
            self.assert_said("plugstack.conf: no line loads gpu-align")

    def test_a_key_that_is_none(self):
        with Changed("plugstack.conf", lambda text: text.replace("helper=", "hepler=")):
            self.assert_said("plugstack.conf:1", "is not a key of gpu-align")

    def test_pyxis_comes_first(self):
        with Changed("plugstack.conf", lambda text: text + "required /x/spank_pyxis.so\n"):
            self.assert_said("gpu-align is listed before pyxis; list it after pyxis")

    def test_nvml_that_hangs(self):
        with NodeFile(lambda node: node.update(nvml={"sleep_s": 100})):
            code, said = check("--timeout=1")
        self.assertEqual(code, 1)
        self.assertIn("NVML did not answer within 1.0 s", said)

    def test_cards_out_of_a_jobs_reach_are_not_looked_at(self):
        done = run("srun", "-n1", "--gres=gpu:1", "gpu-align", "check", "--node=n1")
        self.assertEqual((done.returncode, done.stdout.count("could not look: card ")), (2, 3), done.stdout)
        self.assertEqual(done.stdout.count("\n"), 3, done.stdout)

    def test_a_file_that_may_not_be_read_is_not_looked_at(self):
        for name in ("gres.conf", "cgroup.conf", "plugstack.conf", "slurm.conf"):
            path = ETC / name
            mode = path.stat().st_mode
            path.chmod(0o600)
            try:
                done = run("su", "nobody", "-s", "/bin/sh", "-c", "gpu-align check --node=n1")
            finally:
                path.chmod(mode)
            self.assertEqual(done.returncode, 2, (name, done.stdout))
            self.assertRegex(done.stdout, f"could not look: .*{name}.*Permission denied.*run this as root")
            self.assertEqual((done.stdout.count("\n"), done.stdout.count("problem: ")), (1, 0), done.stdout)

    def test_a_wrong_path_is_not_another_file(self):
        code, said = check("--gres-conf=/nowhere/gres.conf")
        self.assertEqual((code, said.count("\n")), (2, 1), said)
        self.assertIn("could not look: gres.conf: cannot read /nowhere/gres.conf", said)

    def test_without_the_driver_the_files_without_a_card_are_named(self):
        with WithoutDriver():
            code, said = check()
        self.assertEqual((code, said.count("\n")), (1, 5), said)
        self.assertIn("could not look: driver: the NVIDIA driver is not loaded", said)
        for minor in range(4):
            self.assertIn(f"position {minor} has no card behind its File /dev/nvidia{minor}; ", said)

    def test_a_node_that_gres_conf_does_not_name(self):
        with Changed("gres.conf", lambda text: text.replace("NodeName=n1", "NodeName=n2")):
            code, said = check()
        self.assertEqual((code, said.count("\n"), said.count(str(ETC / "gres.conf"))), (1, 1, 1), said)
        self.assertIn("gives node n1 no GPUs, neither by File= nor by AutoDetect; name each card's file", said)

    def test_cards_that_slurm_does_not_give_out_are_no_matter_for_the_prolog(self):
        with UNCOUNTED, UNNAMED:
            self.assert_said("problem: gres.conf: node n1 has 4 cards and Slurm gives out none of them")
            self.assertEqual(prolog("n1"), (0, ""))
            # Nor for one that finds no driver.
            with WithoutDriver():
                self.assertEqual(prolog("n1", "--drain"), (0, ""))

    def test_cards_that_one_file_gives_and_the_other_does_not(self):
        for change, words in ((UNCOUNTED, "names 4 GPUs of node n1 and slurm.conf's Gres= counts none"),
                              (UNNAMED, "gives node n1 no GPUs, neither by File= nor by AutoDetect"),
                              (Removed("gres.conf"), "slurm.conf counts 4 GPUs on node n1 and there is no gres.conf")):
            with change:
                self.assert_said("problem: gres.conf: ", words)
                code, said = prolog("n1", "--drain")
            self.assertEqual((code, said.count("\n")), (0, 1), said)
            self.assertIn(words, said)

    def test_cards_that_are_too_few_or_the_same(self):
        with Changed("slurm.conf", lambda text: text.replace("Gres=gpu:4", "Gres=gpu:6")):
            self.assert_said("gives node n1 4 of the 6 GPUs that slurm.conf counts, so slurmctld drains it")
        with Changed("gres.conf", lambda text: text.replace("[0-3]", "[0-2,2]")):
            code, said = check()
        self.assertEqual((code, said.count("\n")), (1, 2), said)
        self.assertIn("positions 2 and 3 are the same card; list each File once", said)

    def test_files_beyond_what_slurm_conf_counts(self):
        with Changed("gres.conf", lambda text: text.replace("[0-3]", "[0-5]")):
            self.assert_said("slurm.conf counts 4 GPUs on node n1 and this file also names /dev/nvidia4, /dev/nvidia5; ")
        # A card behind one is not told to be added.
        with Changed("slurm.conf", lambda text: text.replace("Gres=gpu:4", "Gres=gpu:3")):
            self.assert_said("slurm.conf counts 3 GPUs on node n1 and this file also names /dev/nvidia3; raise Gres=, Type=")

    def test_cards_that_slurm_conf_counts_are_missed_whatever_gres_conf_says(self):
        RECORD.unlink(missing_ok=True)
        with UNNAMED, WithoutDriver():
            code, said = prolog("n1", "--drain=missing")
        self.assertEqual((code, said.count("\n")), (1, 1), said)
        self.assertIn("the NVIDIA driver is not loaded", said)

    def test_at_boot_nobody_says_which_node_this_is(self):
        self.assertEqual(prolog(None), (0, ""))
        with Changed("gres.conf", lambda text: text.replace("nvidia[0-3]", "nvidia[1-4]")):
            self.assertEqual(prolog(None), (0, ""))
            self.assertEqual(prolog("n1")[1].count("position 3 of"), 1)

    def test_a_node_that_neither_file_names_is_asked_for(self):
        done = run("gpu-align", "check", "--node=n9")
        self.assertEqual((done.returncode, done.stdout.count("\n")), (2, 1), done.stdout)
        self.assertIn("could not look: gres.conf: neither it nor slurm.conf names node n9; give the", done.stdout)

    def test_what_cannot_be_looked_at_is_said(self):
        with Changed("cgroup.conf", lambda text: text):
            (ETC / "cgroup.conf").unlink()
            self.assert_said("could not look: cgroup.conf: it was not found", code=2)


class Permuted(unittest.TestCase):
    def test_all_that_is_wrong_here(self):
        code, said = check("--json")
        self.assertEqual(code, 1)
        found = {finding["what"] for finding in json.loads(said)}
        self.assertEqual(found, {
            "it lacks ConstrainDevices=yes, so every job can open every card",
            "positions are not in PCI order on node n1, which does not constrain devices",
            "the helper /nowhere/gpu-align cannot be run",
        })


if __name__ == "__main__":
    unittest.main()
