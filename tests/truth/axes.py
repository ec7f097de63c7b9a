"""The axes of the matrix, as data."""
import random
from collections import namedtuple

# One cluster: a release of Slurm, whether it constrains devices, and its gres list.
Setting = namedtuple("Setting", "release constrain gres")
# One launch in it; `held`: the first three cards belong to another job.
Combination = namedtuple("Combination", "setting held launch words")

RELEASES = ("system", "24.11", "26.05")
CONSTRAIN = ("yes", "no")
HELD = (False, True)

# `lines` of gres.conf, `order`: the minor at each position, `nodes`: the node file.
Gres = namedtuple("Gres", "node lines order")
CORES = "NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-3] Cores=0-7\nNodeName=n[1-2] Name=gpu File=/dev/nvidia[4-7] Cores=8-15\n"
# domains8 has minors permuted as inv8p has, and PCI domains whose order as text is another. detect8 is inv8p with all cards near all CPUs: slurmd binds each to the CPUs that it detects, and this machine may
# not have those.
GRES = {
    "tidy": Gres("tidy8", CORES, list(range(8))),
    "permuted": Gres("domains8", CORES, list(range(8))),
    "reversed": Gres("inv8p", "".join(f"NodeName=n[1-2] Name=gpu File=/dev/nvidia{minor}\n" for minor in range(7, -1, -1)),
                     list(range(7, -1, -1))),
    "some": Gres("inv8p", "NodeName=n[1-2] Name=gpu File=/dev/nvidia[0-5]\n", list(range(6))),
    "autodetect": Gres("detect8", "AutoDetect=nvidia\n", list(range(8))),
}

# How a launch is made: `kind` srun, sbatch (a step in a script), batch (the script itself), overlap (two steps at
# once), apart (the same, one with one card of the job's and one with two) or het; `tasks`: how many run in all;
# `per_task`: Slurm gives each of them its own cards.
Launch = namedtuple("Launch", "kind arguments tasks per_task", defaults=(3, False))
LAUNCHES = {
    "gres": Launch("srun", "-n3 --gres=gpu:3"),
    "gpus-per-task": Launch("srun", "-n3 --gpus-per-task=1", 3, True),
    "single": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=single:1", 3, True),
    "map_gpu": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=map_gpu:2,0,1", 3, True),
    "mask_gpu": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=mask_gpu:0x4,0x1,0x2", 3, True),
    "mask-sets": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=mask_gpu:0x3,0x4,0x3", 3, True),
    "closest": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=closest"),
    "none": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=none"),
    "per_task": Launch("srun", "-n3 --gres=gpu:3 --gpu-bind=per_task:1", 3, True),
    "ntasks-per-gpu": Launch("srun", "--gpus=3 --ntasks-per-gpu=2", 6, True),
    "task-sharing": Launch("srun", "-n3 --gpus-per-task=1 --gres-flags=allow-task-sharing", 3, True),
    "apart-sharing": Launch("apart", "--gpus-per-task=1 --gres-flags=allow-task-sharing", 3, True),
    "in-batch": Launch("sbatch", "-n3 --gres=gpu:3"),
    "batch": Launch("batch", "-n3 --gres=gpu:3", 1),
    "overlap": Launch("overlap", "-n3 --gres=gpu:3", 6),
    "apart": Launch("apart", ""),
    "het": Launch("het", "-n2 --gres=gpu:2 : -n1 --gres=gpu:1"),
    "more-tasks": Launch("srun", "-n6 --gres=gpu:3", 6),
    "fewer-tasks": Launch("srun", "-n2 --gres=gpu:3", 2),
}

MODES = ("", "all", "single", "rotate", "order=slurm", "map")
IDS = ("uuid", "index")
WORDS = tuple((mode, ids) for mode in MODES for ids in IDS)


def places(launch):
    """What a launch's map= lists: only places that every one of its tasks has."""
    few = LAUNCHES[launch].per_task or LAUNCHES[launch].kind in ("het", "apart") or launch == "closest"
    return [0] if few else [2, 0, 1]


def option(launch, words):
    """The option of a combination."""
    mode, ids = words
    if mode == "map":
        mode = f"map={','.join(map(str, places(launch)))}"
    return "--gpu-align=" + ",".join(word for word in (mode, f"ids={ids}") if word)


def settings(releases=RELEASES):
    for release in releases:
        for constrain in CONSTRAIN:
            for gres in GRES:
                if gres != "autodetect" or release != "system":
                    yield Setting(release, constrain, gres)


def whole(releases=RELEASES):
    """Every combination."""
    return [Combination(setting, held, launch, words)
            for setting in settings(releases) for held in HELD for launch in LAUNCHES for words in WORDS]


def sample(releases=RELEASES, seed=2):
    """Every pair of launch and words once, dealt over the other axes so that each of their values comes up often."""
    places = [(setting, held) for setting in settings(releases) for held in HELD]
    random.Random(seed).shuffle(places)
    pairs = [(launch, words) for launch in LAUNCHES for words in WORDS]
    return [Combination(*places[number % len(places)], *pair) for number, pair in enumerate(pairs)]
