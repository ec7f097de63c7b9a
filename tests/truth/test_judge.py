"""Every check of the judge goes red on a doctored result. Run from tests/: python3 -m unittest truth.test_judge"""
import copy
import unittest

from . import axes, judge

CONSTRAINED = axes.Setting("system", "yes", "permuted")
OPEN = axes.Setting("system", "no", "permuted")
NODE = judge.Node.of("permuted")
CARDS = [NODE.with_minor(minor) for minor in (3, 4, 5)]  # positions 3, 4, 5
IN_PCI_ORDER = sorted(CARDS, key=NODE.rank)


def task(local, visible, own, mode="all", **more):
    env = {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_LOCALID": str(local), "SLURM_PROCID": str(local), "SLURM_STEP_GPUS": "3,4,5",
           "CUDA_VISIBLE_DEVICES": ",".join(visible), "GPU_ALIGN_UUIDS": ",".join(visible), "GPU_ALIGN_CARD": own,
           "GPU_ALIGN_MODE": mode, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **more}
    return {"host": "n1", "open": [3, 4, 5], "cuda": [{"uuid": uuid} for uuid in visible], "cuda_error": None, "env": env}


HEADER = "gpu-align: n1 step 12.0: 3 tasks, 3 cards, mode all, order pci, ids uuid\n"


def row(rank, cuda, uuid):
    return f"gpu-align:   {rank:>4} {rank:>5} {cuda:>4} {NODE.rank(uuid):>4}  0000:01:00.0     0  {uuid}  MODEL"


def good():
    """Three tasks that see all three cards."""
    tasks = [task(local, IN_PCI_ORDER, IN_PCI_ORDER[local]) for local in range(3)]
    log = HEADER + "\n".join(row(local, local, IN_PCI_ORDER[local]) for local in range(3))
    return {"held": True, "launch": "gres", "words": ["", "uuid"], "command": "srun", "status": 0, "log": log,
            "tasks": tasks, "out": "", "steps": {"12.0": "3-5"}, "job": "     Nodes=n1 CPU_IDs=0-2 Mem=0 GRES=gpu:3(IDX:3-5)"}


class Judge(unittest.TestCase):
    def wrong(self, doctor, setting=CONSTRAINED, result=None):
        result = copy.deepcopy(result or good())
        doctor(result)
        return " | ".join(judge.judge(setting, result).wrong)

    def test_a_good_result_is_not_wrong(self):
        verdict = judge.judge(CONSTRAINED, good())
        self.assertEqual((verdict.tasks, verdict.wrong, verdict.unverified), (3, (), 0))

    def test_cuda_opens_another_list(self):
        self.assertIn("CUDA opens", self.wrong(lambda r: r["tasks"][1]["cuda"].reverse()))

    def test_a_card_outside_the_job(self):
        def widen(result):
            for entry in result["tasks"]:
                entry["env"]["GPU_ALIGN_UUIDS"] += "," + NODE.with_minor(7)
        self.assertIn("its step holds", self.wrong(widen))

    def test_a_card_that_does_not_open(self):
        self.assertIn("cannot open", self.wrong(lambda r: r["tasks"][0]["open"].remove(4)))

    def test_the_wrong_form(self):
        self.assertIn("CUDA_VISIBLE_DEVICES is", self.wrong(lambda r: r.update(words=["", "index"])))

    def test_an_own_card_at_the_wrong_index(self):
        def swap(result):
            result["tasks"][0]["env"]["GPU_ALIGN_CARD"] = IN_PCI_ORDER[1]
        self.assertIn("promised were", self.wrong(swap))

    def test_ranks_that_pile_up(self):
        def pile(result):
            for entry in result["tasks"]:
                entry["env"]["GPU_ALIGN_CARD"] = IN_PCI_ORDER[0]
        wrong = self.wrong(pile)
        self.assertIn("ranks per card", wrong)
        self.assertIn("share a card: True, and the log says so: False", wrong)

    def test_sharing_that_is_not(self):
        said = "\ngpu-align:   3 tasks share 2 cards: up to 2 on one"
        self.assertIn("share a card: False", self.wrong(lambda r: r.update(log=r["log"] + said)))

    def test_a_card_of_the_job_that_is_not_the_steps(self):
        self.assertIn("its step holds", self.wrong(lambda r: r["steps"].update({"12.0": "3-4"})))

    def test_a_step_that_slurmctld_does_not_know(self):
        self.assertIn("slurmctld gave", self.wrong(lambda r: r["steps"].clear()))
        self.assertIn("slurmctld gave", self.wrong(lambda r: r["steps"].update({"12.0": "5-6"})))

    def test_a_word_on_stdout(self):
        self.assertIn("wrote to stdout", self.wrong(lambda r: r.update(out="gpu-align: hello")))

    def test_a_log_of_another_step(self):
        self.assertIn("the log says None", self.wrong(lambda r: r.update(log=r["log"].replace("12.0", "12.1"))))

    def test_a_log_that_names_another_card(self):
        self.assertIn("the log says", self.wrong(lambda r: r.update(log=r["log"].replace(CARDS[0], CARDS[1]))))

    def test_unverified_where_it_is_not_and_certain_where_it_is_not(self):
        self.assertIn("says unverified: True", self.wrong(lambda r: r.update(log=r["log"] + "\nunverified")))
        by_rank = good()
        cards = NODE.uuids[3:6]
        by_rank["tasks"] = [task(local, cards, cards[local]) | {"open": list(range(8))} for local in range(3)]
        by_rank["log"] = HEADER + "\n".join(row(local, local, cards[local]) for local in range(3))
        self.assertIn("should be True", self.wrong(lambda r: None, OPEN, by_rank))
        by_rank["log"] += "\nunverified"
        self.assertEqual(judge.judge(OPEN, by_rank), judge.Verdict(3, (), 3))

    def test_a_binding_that_is_not_slurms(self):
        bound = good() | {"launch": "gpus-per-task"}
        bound["tasks"] = [task(n, [CARDS[n]], CARDS[n], "bound") | {"open": [3 + n]} for n in range(3)]
        bound["log"] = HEADER + "\n".join(row(n, 0, CARDS[n]) for n in range(3))
        self.assertEqual(self.wrong(lambda r: None, result=bound), "")
        def exchange(result):
            result["tasks"][0]["open"], result["tasks"][1]["open"] = [4], [3]
        self.assertIn("promised were", self.wrong(exchange, result=bound))

    def test_a_place_that_is_taken_for_a_position(self):
        """allow-task-sharing tells the tasks of positions 3, 4, 5 that theirs are 0, 1, 2."""
        def sharing(cards):
            tasks = [task(n, [cards[n]], cards[n], "bound", SLURM_STEP_GPUS=str(n)) for n in range(3)]
            log = HEADER + "\n".join(row(n, 0, cards[n]) for n in range(3))
            return good() | {"launch": "task-sharing", "tasks": tasks, "log": log}
        self.assertEqual(self.wrong(lambda r: None, result=sharing(CARDS)), "")
        self.assertIn("promised were", self.wrong(lambda r: None, result=sharing(CARDS[::-1])))

    def test_a_set_that_its_tasks_do_not_split(self):
        """mask_gpu:0x3,0x4,0x3: tasks 0 and 2 hold the first two cards."""
        sets = [sorted(cards, key=NODE.rank) for cards in (CARDS[:2], CARDS[2:], CARDS[:2])]
        def split(own):
            tasks = [task(n, [own[n]], own[n], "single") | {"open": [NODE.minors[NODE.rank(c)] for c in sets[n]]}
                     for n in range(3)]
            log = HEADER + "\n".join(row(n, 0, own[n]) for n in range(3))
            return good() | {"launch": "mask-sets", "words": ["single", "uuid"], "tasks": tasks, "log": log}
        self.assertEqual(self.wrong(lambda r: None, result=split([sets[0][0], sets[1][0], sets[0][1]])), "")
        self.assertIn("promised were", self.wrong(lambda r: None, result=split([sets[0][0], sets[1][0], sets[0][0]])))

    def test_tasks_left_alone_without_need(self):
        def leave(result):
            for entry in result["tasks"]:
                del entry["env"]["GPU_ALIGN_CARD"]
            result["log"] = "gpu-align: n1 step 12.0: CUDA_VISIBLE_DEVICES stays as Slurm made it: why"
        self.assertIn("were left as Slurm made them", self.wrong(leave))
        told = good() | {"launch": "none"}
        self.assertIn("were left as Slurm made them", self.wrong(leave, OPEN, told))
        for entry in told["tasks"]:
            del entry["env"]["SLURM_STEP_GPUS"]
        self.assertEqual(self.wrong(leave, OPEN, told), "")

    def test_tasks_that_never_spoke_a_refusal_and_a_hang(self):
        self.assertIn("2 of 3 tasks spoke", self.wrong(lambda r: r["tasks"].pop()))
        self.assertIn("did not end", self.wrong(lambda r: r.update(status="hung")))
        refusal = good() | {"status": 1, "tasks": [], "log": "srun: error: Invalid --gres-flags specification"}
        self.assertEqual(judge.judge(CONSTRAINED, refusal).refused, refusal["log"])
        for log in "srun: error: gpu-align: no", "srun: error: task 0 launch failed: Slurmd could not execve job", "":
            self.assertIn("it failed", self.wrong(lambda r: None, result=refusal | {"log": log}))

    def test_the_plugin_left_off_changes_a_variable(self):
        unasked = good() | {"words": None, "log": ""}
        unasked["without"] = copy.deepcopy(unasked)
        self.assertEqual(self.wrong(lambda r: None, result=unasked), "")
        def touch(result):
            result["tasks"][2]["env"]["CUDA_VISIBLE_DEVICES"] = "0"
        self.assertIn("without the option CUDA_VISIBLE_DEVICES", self.wrong(touch, result=unasked))


if __name__ == "__main__":
    unittest.main()
