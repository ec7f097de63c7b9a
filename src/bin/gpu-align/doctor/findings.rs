//! The findings: each says what, why it matters and what to do. Pure, over a
//! [`Patient`].

use gpu_align::device::Inventory;
use serde::Serialize;

use super::{Patient, container, mps, parsers};
use crate::inside::screen::{Screen, count};
use crate::verify::checks::{self, Evidence, State};
use crate::verify::sharing::TaskOf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A program gets another card than it should, or none.
    Wrong,
    /// It can happen, or it costs.
    Warning,
    Note,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub level: Level,
    pub topic: &'static str,
    pub what: String,
    pub why: &'static str,
    pub todo: String,
}

impl Finding {
    pub fn text(&self, screen: Screen) -> String {
        const INDENT: usize = 10;
        let word = match self.level {
            Level::Wrong => "WRONG",
            Level::Warning => "WARNING",
            Level::Note => "note",
        };
        let what = format!("{}: {}", self.topic, self.what);
        let mut out = screen.sentence(&format!("  {word}"), INDENT, &what);
        if self.level != Level::Note {
            out = out.replacen(word, &screen.bad(word), 1);
        }
        let rest = [("why", self.why), ("do", self.todo.as_str())];
        for (head, text) in rest.iter().filter(|(_, text)| !text.is_empty()) {
            out += &screen.sentence(&format!("{:INDENT$}{head:<5}", ""), INDENT + 5, text);
        }
        out
    }
}

pub fn finding(
    level: Level,
    topic: &'static str,
    what: impl Into<String>,
    why: &'static str,
    todo: impl Into<String>,
) -> Finding {
    Finding { level, topic, what: what.into(), why, todo: todo.into() }
}

pub fn findings(patient: &Patient) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(compared(patient));
    all.extend(shell_files(patient));
    all.extend(plugin(patient));
    all.extend(slurm(patient));
    all.extend(other_vendors(patient));
    all.extend(driver(patient));
    all.extend(libraries(patient));
    all.extend(container::finding_of(patient));
    all.extend(mps::finding_of(patient));
    all.extend(cards(patient));
    all.extend(strangers(patient));
    all.extend(parsers::findings(patient));
    all
}

/// What `verify` finds wrong.
fn compared(patient: &Patient) -> Vec<Finding> {
    let evidence = Evidence {
        scene: &patient.scene,
        usage: &patient.usage,
        above: &patient.above,
        hits: &patient.hits,
        task_of: &|pid| TaskOf::read(std::path::Path::new("/"), pid),
        mps: &patient.mps,
        other: None,
        expected: None,
    };
    let wrong = checks::checks(&evidence).into_iter().filter(|check| check.state == State::Wrong);
    let why = "the program gets other cards than the log says, or none";
    let finding = |check: checks::Check| {
        let todo = match check.name {
            "variable" | "order" => "remove that assignment, or make it only where it is unset",
            "list" => "unset the variable, or let srun --gpu-align set it",
            "kernel" | "nvml" => "ask the admin, with this page",
            _ => "see 'gpu-align verify'",
        };
        finding(Level::Wrong, check.name, check.says, why, todo)
    };
    wrong.map(finding).collect()
}

/// A file that sets a variable changes every later job, also where it does not show now.
fn shell_files(patient: &Patient) -> Vec<Finding> {
    let finding = |hit: &crate::inside::hands::Hit| {
        finding(
            Level::Warning,
            "files",
            hit.to_string(),
            "it overrides what Slurm and gpu-align give, in every shell that reads the file",
            "remove the line",
        )
    };
    patient.hits.iter().map(finding).collect()
}

fn plugin(patient: &Patient) -> Option<Finding> {
    let env = &patient.scene.env;
    let (plugin, here) = (&patient.plugin, env.get("GPU_ALIGN_VERSION").is_some());
    if let Some(file) = &plugin.missing {
        return Some(finding(
            Level::Wrong,
            "plugin",
            format!(
                "{} names {file}, which is not there",
                plugin.line.as_deref().unwrap_or("plugstack.conf")
            ),
            "srun fails, or goes on without gpu-align where the line says optional",
            "ask the admin to install it",
        ));
    }
    let unknown = plugin.slurm.as_ref().filter(|slurm| !slurm.is_known());
    if let (Some(slurm), Some(_), false) = (unknown, &plugin.line, here) {
        return Some(finding(
            Level::Wrong,
            "plugin",
            format!("{slurm}, which gpu-align {} does not know", env!("CARGO_PKG_VERSION")),
            "Slurm refuses the plugin: srun fails, or goes on without it where the line says \
             optional",
            "ask the admin to install a gpu-align that knows this release",
        ));
    }
    let in_step = env.get("SLURM_STEP_ID").is_some();
    match (&plugin.line, &plugin.absent_from) {
        _ if here || !patient.scene.in_job() => None,
        (Some(line), _) => Some(finding(
            Level::Note,
            "plugin",
            format!("{line} loads gpu-align and this environment has nothing of it"),
            "",
            match in_step {
                true => "ask for it with srun --gpu-align, or set SLURM_GPU_ALIGN=auto",
                false => "this shell may have been started without it: try srun --gpu-align env",
            },
        )),
        (None, Some(file)) => Some(finding(
            Level::Note,
            "plugin",
            format!("{file} has no line for gpu-align"),
            "",
            "ask the admin for the plugin, or use 'gpu-align exec' and 'gpu-align show --export'",
        )),
        _ => None,
    }
}

/// Slurm's numbers follow its list of device files, nvidia-smi's and CUDA's follow PCI order.
fn untidy(cards: &Inventory, constrained: bool) -> Finding {
    let all = cards.cards();
    let differ = all.iter().enumerate().filter(|(rank, card)| card.minor.0 as usize != *rank);
    let what =
        format!("minor and PCI order differ on {} of {}", differ.count(), count(all.len(), "card"));
    if constrained {
        let why = "a tool that takes Slurm's number for nvidia-smi's index watches another card";
        return finding(
            Level::Note,
            "slurm",
            what,
            why,
            "tell such a tool the UUIDs in GPU_ALIGN_UUIDS or in 'gpu-align show'",
        );
    }
    finding(
        Level::Warning,
        "slurm",
        what,
        "on a node that does not constrain devices Slurm's numbers then name other cards to CUDA",
        "ask the admin for AutoDetect=nvml, or File= lines in PCI order",
    )
}

fn slurm(patient: &Patient) -> Vec<Finding> {
    let scene = &patient.scene;
    let mut all = Vec::new();
    let said = scene.said().positions;
    let reach = scene.reach.len();
    if let Some(said) = said.as_ref().filter(|said| said.len() < reach) {
        all.push(finding(
            Level::Warning,
            "slurm",
            format!(
                "the step holds {} and this process can open {reach}",
                count(said.len(), "card")
            ),
            "nothing keeps a program from a neighbour's card but the variable",
            "ask the admin for ConstrainDevices=yes in cgroup.conf",
        ));
    }
    if said.is_some() && !scene.cards().is_tidy() {
        let constrained = said.as_ref().is_some_and(|said| said.len() >= reach);
        all.push(untidy(scene.cards(), constrained));
    }
    let slurms = scene.slurm_says();
    if let Some(other) = slurms.iter().flatten().find(|device| !scene.reach.contains(device)) {
        all.push(finding(
            Level::Note,
            "slurm",
            format!(
                "SLURM_STEP_GPUS names card {}, which this task cannot open",
                scene.cards().card(*other).pci
            ),
            "Slurm writes the same numbers into every task that it binds; the kernel is right",
            "do not compute cards from SLURM_STEP_GPUS or SLURM_JOB_GPUS",
        ));
    }
    if scene.is_bound() && reach == 1 && scene.tasks_here().is_some_and(|tasks| tasks > 1) {
        all.push(finding(
            Level::Note,
            "slurm",
            "each task can open its own card only",
            "cuda:LOCAL_RANK is an invalid ordinal and cards cannot reach each other directly, which \
             makes NCCL and MPI slower",
            "ask with --gres=gpu:N and --gpu-align=all, or add --gres-flags=allow-task-sharing (23.11+)",
        ));
    }
    if let Err(why) = scene.allotted() {
        if scene.inventory.is_ok() {
            let todo = match scene.env.get("SLURM_STEP_ID") {
                Some(_) => "ask the admin, with this page",
                None => "start the program with srun",
            };
            let harm = "gpu-align then leaves the list as it is";
            all.push(finding(Level::Warning, "slurm", why, harm, todo));
        }
    }
    all
}

fn other_vendors(patient: &Patient) -> Option<Finding> {
    let names =
        ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"];
    let set: Vec<&str> =
        names.into_iter().filter(|name| patient.scene.env.get(name).is_some()).collect();
    (!set.is_empty() && patient.scene.inventory.is_ok()).then(|| {
        finding(
            Level::Note,
            "vendors",
            format!("{} set on a node with NVIDIA cards", set.join(", ")),
            "some libraries want these lists to agree with CUDA_VISIBLE_DEVICES and refuse to start",
            "unset them in the job; the admin can write Flags=nvidia_gpu_env in gres.conf",
        )
    })
}

fn driver(patient: &Patient) -> Vec<Finding> {
    let mut all = Vec::new();
    let loaded = patient.driver.as_deref();
    let library = patient.scene.unfiltered.as_ref().ok().and_then(|answer| answer.library.clone());
    let of_library = library.as_deref().and_then(|path| path.split("libcuda.so.").nth(1));
    let of_nvml = patient.usage.as_ref().ok().and_then(|usage| usage.driver.as_deref());
    for (what, version) in
        [(library.as_deref().unwrap_or("libcuda"), of_library), ("NVML", of_nvml)]
    {
        if let (Some(loaded), Some(version)) = (loaded, version.filter(|v| v.contains('.'))) {
            if loaded != version {
                all.push(finding(
                    Level::Wrong,
                    "driver",
                    format!("the loaded driver is {loaded} and {what} is of {version}"),
                    "CUDA starts with errors, or sees no card, until both are the same",
                    "ask the admin to reboot the node, or to mount the host's libraries into the container",
                ));
            }
        }
    }
    if let Some(error) =
        patient.scene.unfiltered.as_ref().ok().and_then(|answer| answer.error.as_ref())
    {
        if error.code == Some(100) && !patient.scene.reach.is_empty() {
            all.push(finding(
                Level::Wrong,
                "driver",
                format!("{} although cards can be opened", error),
                "no CUDA program can start here",
                "look for /dev/nvidiactl and /dev/nvidia-uvm, and ask the admin",
            ));
        }
    }
    all
}

fn libraries(patient: &Patient) -> Vec<Finding> {
    let finding = |found: &super::libraries::Found| match found.stub {
        true => finding(
            Level::Wrong,
            "libraries",
            format!("{} is a stub for linking and comes before the driver's library", found.path),
            "CUDA then finds no driver (error 34 or 100)",
            "take that folder out of LD_LIBRARY_PATH",
        ),
        false => finding(
            Level::Note,
            "libraries",
            format!("{} comes before the system's library", found.path),
            "if it is of another driver version CUDA does not start",
            "compare it with the driver's version above",
        ),
    };
    patient.libraries.iter().map(finding).collect()
}

fn cards(patient: &Patient) -> Vec<Finding> {
    let mut all = Vec::new();
    for card in patient.usage.iter().flat_map(|usage| &usage.cards) {
        match card.compute_mode.as_deref() {
            Some("prohibited") => all.push(finding(
                Level::Wrong,
                "cards",
                format!("card {} is in compute mode prohibited", card.pci),
                "no program can use it",
                "ask the admin: nvidia-smi -c 0",
            )),
            Some("exclusive_process") => all.push(finding(
                Level::Note,
                "cards",
                format!("card {} is in compute mode exclusive_process", card.pci),
                "a second process on it fails with 'device busy or unavailable'",
                "run one process a card, or MPS",
            )),
            _ => {}
        }
        let known = patient.scene.cards().cards().iter().find(|known| known.pci == card.pci);
        let sliced = !card.slices.is_empty() || known.is_some_and(|known| !known.slices.is_empty());
        if card.mig == Some(true) && !sliced {
            all.push(finding(
                Level::Wrong,
                "cards",
                format!("card {} is in MIG mode and has no slice", card.pci),
                "CUDA finds no device on it",
                "ask the admin for slices (nvidia-smi mig -cgi), or to end the mode (nvidia-smi \
                 -mig 0)",
            ));
        }
        if card.persistence == Some(false) {
            all.push(finding(
                Level::Note,
                "cards",
                format!("card {} is not in persistence mode", card.pci),
                "its first use in a job takes seconds",
                "ask the admin for nvidia-persistenced",
            ));
        }
    }
    for silent in patient.usage.iter().flat_map(|usage| &usage.silent) {
        all.push(finding(
            Level::Wrong,
            "cards",
            format!("NVML cannot speak of {silent}"),
            "a card that fell off the bus stays away until it is reset",
            "ask the admin, with the kernel's Xid messages",
        ));
    }
    all
}

/// Another user's process on a card that this process may use.
fn strangers(patient: &Patient) -> Vec<Finding> {
    let finding = |process: &super::processes::Running| {
        finding(
            Level::Warning,
            "busy",
            process.says(),
            "memory and time of the card are shared with someone else's program",
            match patient.scene.in_job() {
                true => "report it: an allocated card should be yours alone",
                false => "take another card: gpu-align pick",
            },
        )
    };
    let foreign = |process: &&super::processes::Running| !process.own && process.user.is_some();
    patient.running.iter().filter(foreign).map(finding).collect()
}
