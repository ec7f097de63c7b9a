"""slurm.conf and its companions, for a cluster whose steps start as fast as Slurm can."""
import socket

from . import HOME, gres

ETC = HOME / "etc"
SLURM_CONF = ETC / "slurm.conf"

SLURM = """\
ClusterName=simulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/pid/slurmctld
SlurmdPidFile={home}/pid/slurmd.%n
SlurmctldLogFile={home}/log/slurmctld.log
SlurmdLogFile={home}/log/slurmd.%n.log
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes={gres_types}
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
PlugStackConfig={etc}/plugstack.conf
ReturnToService=2
CompleteWait=0
KillWait=2
EpilogMsgTime=0
InactiveLimit=0
MaxJobCount=100000
"""
NODE = ("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Sockets={sockets} "
        "CoresPerSocket={cores} ThreadsPerCore=1 RealMemory=16000{gres}\n")
PARTITION = "PartitionName=p Nodes=ALL Default=YES State=UP MaxTime=INFINITE\n"


def node_names(count):
    return [f"n{number}" for number in range(1, count + 1)]


def write(options, node, ports, cgroup_lines):
    """All configuration files. `ports`: slurmctld's, then one for each node."""
    names = node_names(options.nodes)
    gres_conf = options.gres.read_text() if options.gres else gres.generated(names, node.minors)
    counts = {name: gres.count(gres_conf, name, len(node.cards)) for name in names}
    _write("slurm.conf", _slurm_conf(options, node, ports, counts))
    _write("gres.conf", gres_conf)
    _write("cgroup.conf", f"{cgroup_lines}ConstrainDevices={options.constrain}\n")
    _write("plugstack.conf", options.plugstack_conf)
    for name in names:
        (HOME / "spool" / name).mkdir(parents=True)


def _slurm_conf(options, node, ports, counts):
    host = socket.gethostname().partition(".")[0]
    kinds = {"gpu"} | {word.partition(":")[0] for value in counts.values() if value for word in value.split(",")}
    text = SLURM.format(host=host, port=ports[0], home=HOME, etc=ETC, gres_types=",".join(sorted(kinds)))
    for (name, value), port in zip(counts.items(), ports[1:]):
        text += NODE.format(name=name, host=host, port=port, cpus=node.cpus, sockets=node.sockets,
                            cores=node.cores_per_socket, gres=f" Gres={value}" if value else "")
    return text + PARTITION + "".join(f"{line}\n" for line in options.conf)


def _write(name, text):
    (ETC / name).write_text(text)
