"""contrib/torch/gpu_align_check.py against stand-ins for torch, old and new; run with python3 -m unittest."""
import importlib.util
import io
import json
import os
import sys
import types
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

FILE = Path(__file__).resolve().parents[2] / "contrib/torch/gpu_align_check.py"
UUIDS = [f"00000000-0004-4000-8000-00000000000{rank}" for rank in range(4)]
GIVEN = [f"GPU-{uuid}" for uuid in UUIDS]


def load():
    spec = importlib.util.spec_from_file_location("gpu_align_check", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def torch(cards, version="2.11.0+cu130", initialised=False, fields=("uuid", "pci")):
    """A stand-in for torch that sees these cards of the node."""
    module = types.ModuleType("torch")
    module.__version__ = version
    module.version = types.SimpleNamespace(cuda="13.0")

    def properties(index):
        card = cards[index]
        said = types.SimpleNamespace(name="NVIDIA A100", total_memory=80 << 30)
        if "uuid" in fields:
            said.uuid = UUIDS[card]
        if "pci" in fields:
            said.pci_domain_id, said.pci_bus_id, said.pci_device_id = 0, 0x11 + 0x20 * card, 0
        return said

    module.cuda = types.SimpleNamespace(device_count=lambda: len(cards), is_initialized=lambda: initialised,
                                        init=lambda: None, get_device_properties=properties)
    return module


class Check(unittest.TestCase):
    def look(self, module, env=None, device=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("GPU_ALIGN", "CUDA_"))}
        with mock.patch.dict(sys.modules, {"torch": module}), mock.patch.dict(os.environ, {**clean, **(env or {})}, clear=True):
            return load().look(device)

    def env(self, cards, own=None):
        return {"GPU_ALIGN_VERSION": "0.1.0", "GPU_ALIGN_UUIDS": ",".join(GIVEN[c] for c in cards),
                "GPU_ALIGN_CARD": GIVEN[own if own is not None else cards[0]],
                "CUDA_VISIBLE_DEVICES": ",".join(GIVEN[c] for c in cards)}

    def test_the_given_cards_are_seen(self):
        report = self.look(torch([2, 3]), self.env([2, 3]))
        self.assertEqual((report.wrong, report.warnings, report.unknown), ([], [], []))
        self.assertEqual([d["pci"] for d in report.devices], ["0000:51:00.0", "0000:71:00.0"])
        self.assertEqual([d["uuid"] for d in report.devices], [GIVEN[2], GIVEN[3]])
        self.assertIn("<- this rank's own", "\n".join(report.lines()))

    def test_other_cards_and_another_order_are_mismatches(self):
        self.assertIn("was changed after launch to", self.look(torch([1]), self.env([2])).wrong[0])
        self.assertIn("in another order", self.look(torch([3, 2]), self.env([2, 3])).wrong[0])

    def test_check_raises_with_the_text(self):
        module = torch([1])
        with mock.patch.dict(sys.modules, {"torch": module}), mock.patch.dict(os.environ, self.env([2])):
            checker = load()
            with self.assertRaises(checker.Mismatch) as raised:
                checker.check(quiet=True)
        self.assertTrue(str(raised.exception).startswith("gpu-align: torch sees "))

    def test_the_device_about_to_be_used_is_compared_with_the_own_card(self):
        env = self.env([0, 1, 2, 3], own=2)
        self.assertEqual(self.look(torch([0, 1, 2, 3]), env, device=2).wrong, [])
        wrong = self.look(torch([0, 1, 2, 3]), env, device="cuda:0").wrong
        self.assertIn("use cuda:2", wrong[0])
        self.assertIn("invalid device ordinal", self.look(torch([0]), self.env([0]), device=3).wrong[0])

    def test_an_initialised_torch_is_warned_of(self):
        report = self.look(torch([2], initialised=True), self.env([2]))
        self.assertIn("before this check", report.warnings[0])

    def test_an_old_torch_counts_no_uuids(self):
        report = self.look(torch([], version="1.13.1"), self.env([2]))
        self.assertIn("reads only numbers", report.wrong[0])
        self.assertIn("--gpu-align=ids=index", report.wrong[0])

    def test_without_fields_the_driver_library_is_asked(self):
        checker_names = [(UUIDS[2], "0000:51:00.0")]
        with mock.patch.dict(sys.modules, {"torch": torch([2], version="1.13.1", fields=())}), \
                mock.patch.dict(os.environ, {**self.env([2]), "CUDA_VISIBLE_DEVICES": "0"}):
            checker = load()
            with mock.patch.object(checker, "_driver_names", lambda report: checker_names):
                report = checker.look()
        self.assertEqual((report.wrong, report.unknown), ([], []))
        self.assertEqual(report.devices[0]["uuid"], GIVEN[2])

    def test_without_fields_and_library_the_count_is_still_compared(self):
        with mock.patch.dict(sys.modules, {"torch": torch([2, 3], version="1.13.1", fields=())}), \
                mock.patch.dict(os.environ, self.env([2])):
            checker = load()
            with mock.patch.object(checker, "_driver_names", lambda report: []):
                report = checker.look()
        self.assertIn("gave 1 device and torch sees 2 devices", report.wrong[0])
        self.assertIn("does not give UUIDs", report.unknown[0])

    def test_without_gpu_align_nothing_is_wrong_and_it_says_so(self):
        report = self.look(torch([2]))
        self.assertEqual(report.wrong, [])
        self.assertIn("GPU_ALIGN_UUIDS is unset", report.unknown[0])

    def test_a_missing_torch_is_said(self):
        report = self.look(None, self.env([2]))
        self.assertIn("torch cannot be imported", report.unknown[0])

    def test_a_torch_that_cannot_start_cuda_is_wrong(self):
        module = torch([2])

        def init():
            raise RuntimeError("No CUDA GPUs are available\nmore")
        module.cuda.init = init
        self.assertIn("CUDA does not start: No CUDA GPUs are available", self.look(module, self.env([2])).wrong[0])

    def test_slices_in_the_spelling_of_old_drivers(self):
        """torch has no more than the card's UUID."""
        slices = [f"MIG-{GIVEN[2]}/7/0", f"MIG-{GIVEN[2]}/8/0"]
        env = {"GPU_ALIGN_VERSION": "0.1.0", "GPU_ALIGN_UUIDS": slices[1], "GPU_ALIGN_CARD": slices[1]}
        report = self.look(torch([2]), env, device=0)
        self.assertEqual((report.wrong, report.unknown), ([], []))
        self.assertEqual(report.devices[0]["uuid"], slices[1])
        # Of two slices of one card nobody says which it is; that is no mismatch.
        report = self.look(torch([2]), {**env, "GPU_ALIGN_UUIDS": ",".join(slices)}, device=0)
        self.assertEqual((report.wrong, len(report.unknown)), ([], 1))
        self.assertIn("2 slices of GPU-0000...0002 were given", report.unknown[0])
        self.assertIn("was changed after launch", self.look(torch([1]), env).wrong[0])

    def test_a_slice_that_torch_takes_for_its_card_is_asked_of_the_driver(self):
        own = "MIG-00000000-00a0-5000-8000-000000000001"
        env = {"GPU_ALIGN_VERSION": "0.1.0", "GPU_ALIGN_UUIDS": own, "GPU_ALIGN_CARD": own}
        for named, wrong in (((own[4:], None), 0), ((UUIDS[2], None), 1), ((None, None), 1)):
            with mock.patch.dict(sys.modules, {"torch": torch([2])}), mock.patch.dict(os.environ, env):
                checker = load()
                with mock.patch.object(checker, "_driver_names", lambda report: [named]):
                    self.assertEqual(len(checker.look().wrong), wrong, named)

    def test_slices_without_names_are_not_counted_as_cards(self):
        env = {"GPU_ALIGN_VERSION": "0.1.0", "GPU_ALIGN_UUIDS": "MIG-1,MIG-2"}
        with mock.patch.dict(sys.modules, {"torch": torch([2], fields=())}), mock.patch.dict(os.environ, env):
            checker = load()
            with mock.patch.object(checker, "_driver_names", lambda report: []):
                self.assertEqual(checker.look().wrong, [])

    def test_the_device_in_every_spelling(self):
        module, env = torch([0, 1], initialised=True), self.env([0, 1], own=1)
        module.cuda.current_device = lambda: 1
        spelt = [1, "1", "cuda:1", "cuda", types.SimpleNamespace(type="cuda", index=1)]
        for device in spelt:
            self.assertEqual(self.look(module, env, device=device).wrong, [], device)
        self.assertIn("invalid device ordinal", self.look(module, env, device=-1).wrong[0])
        for device in ("cpu", "cuda:x", "1,2"):
            with self.assertRaisesRegex(ValueError, "is no device of CUDA"):
                self.look(module, env, device=device)

    def test_a_card_that_does_not_answer_is_wrong(self):
        module = torch([2])

        def lost(index):
            raise RuntimeError("CUDA error: GPU is lost")
        module.cuda.get_device_properties = lost
        self.assertIn("cuda:0 does not answer: CUDA error: GPU is lost", self.look(module, self.env([2])).wrong[0])

    def test_what_it_says_needs_no_utf_8(self):
        for report in (self.look(torch([1]), self.env([2])), self.look(torch([2]), self.env([2]), device=7)):
            "\n".join(report.lines()).encode("ascii")

    def test_a_library_that_torch_lacks_is_said(self):
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise OSError("libcublas.so.11: cannot open shared object file")

        saved = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "torch"}
        sys.meta_path.insert(0, Broken())
        try:
            with mock.patch.dict(os.environ, self.env([2])):
                self.assertIn("libcublas.so.11", load().look().unknown[0])
        finally:
            del sys.meta_path[0]
            sys.modules.update(saved)

    def test_json_and_exit_status(self):
        with mock.patch.dict(sys.modules, {"torch": torch([2])}), mock.patch.dict(os.environ, self.env([2])):
            checker, out = load(), io.StringIO()
            with redirect_stdout(out):
                self.assertEqual(checker.main(["--json"]), 0)
                self.assertEqual(checker.main(["--json", "--device", "cuda:1"]), 1)
                self.assertEqual(checker.main(["--json", "--device", "cuda"]), 0)
            with self.assertRaises(SystemExit) as ended, redirect_stderr(io.StringIO()):
                checker.main(["--device", "cpu"])
            self.assertEqual(ended.exception.code, 2)
        said = json.loads(out.getvalue().splitlines()[0])
        self.assertEqual((said["schema"], said["devices"][0]["uuid"]), (1, GIVEN[2]))


if __name__ == "__main__":
    unittest.main()
