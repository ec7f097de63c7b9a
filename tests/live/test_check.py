"""`gpu-align check` names what is wrong with a node, and nothing on one where all is well."""
# cluster Tidy: --node tests/nodes/tidy4.json --plugstack helper=/usr/bin/gpu-align
# cluster Permuted: --node tests/nodes/inv8p.json --constrain no --plugstack helper=/nowhere/gpu-align
import json
import os
import unittest
from pathlib import Path

from harness import Installed, NodeFile, run

ETC = Path(os.environ["SLURM_CONF"]).parent


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


class Tidy(unittest.TestCase):
    def assert_said(self, *words, code=1):
        found, said = check()
        self.assertEqual((found, said.count("\n")), (code, 1), said)
        for word in words:
            self.assertIn(word, said)

    def test_all_is_well(self):
        self.assertEqual(check(), (0, ""))
        self.assertEqual(check("--json"), (0, "[]\n"))

    def test_as_a_user(self):
        done = run("su", "nobody", "-s", "/bin/sh", "-c", "gpu-align check --node=n1")
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_file_without_a_card(self):
        with Changed("gres.conf", lambda text: text.replace("[0-3]", "[0-2]") + "Name=gpu File=/dev/null\n"):
            code, said = check()
        self.assertEqual(code, 1)
        self.assertIn("has no card behind its File; correct it", said)
        self.assertIn("card 0000:71:00.0 (/dev/nvidia3) is not configured", said)

    def test_persistence(self):
        with NodeFile(lambda node: node["cards"][1].update(persistence=False)):
            self.assert_said("card 0000:31:00.0: persistence is off", "nvidia-persistenced")

    def test_constrain_devices(self):
        with Changed("cgroup.conf", lambda text: text.replace("ConstrainDevices=yes", "")):
            self.assert_said("cgroup.conf: it lacks ConstrainDevices=yes")

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
