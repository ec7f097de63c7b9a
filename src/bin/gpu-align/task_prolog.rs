//! `gpu-align task-prolog`: the plugin's work for a site that cannot load SPANK
//! plugins, in the words that slurmstepd reads from a TaskProlog's stdout.
//!
//! A TaskProlog runs as the user, in the task's cgroup, with the task's own
//! variables, so the same facts lead to the same plan. What it lacks is the
//! page that tasks share: each speaks for itself, and where Slurm binds several
//! tasks to one set of devices that set is not split.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use gpu_align::align::policy::{Policy, Print, Words};
use gpu_align::device::{Device, Inventory};
use gpu_align::launch::{self, Decision, Step};
use gpu_align::node::gather::{Gathered, Sources, gather};
use gpu_align::node::record;
use gpu_align::reach::{may_open, nodes, reach};
use gpu_align::report::{Outcome, Report, Task};
use gpu_align::slurm::files;
use gpu_align::slurm::gres_conf::GresError;
use gpu_align::slurm::step::{self, Kind, Said};

use crate::prolog::host_name;

const EXAMPLES: &str = "\
What it prints is for slurmstepd: `export NAME=value`, and `print TEXT`, which ends up on
the program's stdout. So it says something only for print=task, print=json and in doubt.

Exit status:
  0  always, unless the words hold `strict`
  1  `strict` and a doubt: Slurm ends the task
  2  the options cannot be understood: Slurm ends the task

Examples:
  gpu-align task-prolog --words=auto      in slurm.conf's TaskProlog
  gpu-align task-prolog --words=off       only for jobs that set SLURM_GPU_ALIGN
  gpu-align task-prolog --verify          beside the plugin: say what a script changed";

/// What a user sets; it goes over --words.
const WORDS_VARIABLE: &str = "SLURM_GPU_ALIGN";
const HELPER_TIMEOUT: Duration = Duration::from_secs(2);

/// Do the plugin's work from Slurm's TaskProlog, where plugins cannot be loaded
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct TaskProlog {
    /// The site's default words, as in plugstack.conf's default=
    #[arg(long, value_name = "WORDS", default_value = "off", conflicts_with = "verify")]
    words: Words,
    /// Change nothing; say where the environment is no longer what gpu-align set
    #[arg(long)]
    verify: bool,
    /// The node's record
    #[arg(long, value_name = "PATH", default_value = record::PATH)]
    record: PathBuf,
    /// gres.conf, where it is not beside slurm.conf
    #[arg(long, value_name = "PATH")]
    gres_conf: Option<PathBuf>,
}

/// What goes to slurmstepd.
#[derive(Default)]
struct Speech(String);

impl Speech {
    fn export(&mut self, variables: &[(&'static str, String)]) {
        for (name, value) in variables {
            self.0 += &format!("export {name}={value}\n");
        }
    }

    fn print(&mut self, text: &str) {
        for line in text.lines() {
            self.0 += &format!("print {line}\n");
        }
    }
}

impl TaskProlog {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut speech = Speech::default();
        let failed = match self.verify {
            true => {
                self.compare(&mut speech);
                false
            }
            false => self.align(&mut speech),
        };
        let _ = io::stdout().write_all(speech.0.as_bytes());
        Ok(ExitCode::from(u8::from(failed)))
    }

    fn gather(&self, said: &Said) -> Gathered {
        let helper = env::current_exe().unwrap_or_default();
        let sources = Sources { record: self.record.clone(), helper, timeout: HELPER_TIMEOUT };
        gather(Path::new("/"), &sources, said.holds_devices())
    }

    /// Whether the task is to fail.
    fn align(&self, speech: &mut Speech) -> bool {
        let words = variable(WORDS_VARIABLE).unwrap_or_default().parse::<Words>();
        let policy = Policy::resolve([&self.words].into_iter().chain(words.as_ref().ok()));
        if policy.is_off() {
            return false;
        }
        let (step_id, kind, said) = step_said();
        let Gathered { inventory, gap } = match &words {
            Ok(_) => self.gather(&said),
            Err(why) => Gathered { inventory: Err(format!("{WORDS_VARIABLE}: {why}")), gap: None },
        };
        let number = |name: &str| variable(name).and_then(|n| n.parse::<u32>().ok());
        let node = variable("SLURMD_NODENAME").unwrap_or_else(host_name);
        let own = self.gres_conf.as_deref();
        // Without a list that can be trusted, numbers are read as the neighbours read them.
        let list = match &inventory {
            Ok(known) => files::gres_list(own, &node, known),
            Err(_) => Ok(None),
        };
        let tasks = match kind {
            Kind::Normal => variable("SLURM_STEP_TASKS_PER_NODE").and_then(|list| {
                step::tasks_on_node(&list, number("SLURM_NODEID").unwrap_or(0) as usize)
            }),
            _ => Some(1),
        };
        let local = number("SLURM_LOCALID").unwrap_or(0);
        let step = Step {
            name: match step_id {
                Some(id) => step::name(number("SLURM_JOB_ID").unwrap_or(0), id),
                None => format!("{}.batch", number("SLURM_JOB_ID").unwrap_or(0)),
            },
            node,
            policy,
            cards_gone: matches!(list, Err(GresError::CardsGone { .. })),
            positions: list.ok().flatten().map(|list| list.devices()),
            said,
            reading: Default::default(),
            tasks: tasks.unwrap_or(local as usize + 1),
            inventory,
            gap,
        };
        let reached: Vec<Device> =
            step.inventory.as_ref().map(|known| reach(&nodes(known), may_open)).unwrap_or_default();
        let decided = step.decide(local as usize, &reached, variable, |_| None);
        if let Ok(None) = decided {
            return false;
        }
        let replaced_order = variable("CUDA_DEVICE_ORDER").filter(|order| order != "PCI_BUS_ID");
        let (outcome, cautions) = match decided {
            Ok(Some(Decision { plan, cautions, variables })) => {
                speech.export(&variables);
                (Outcome::Aligned(plan), cautions)
            }
            Err(why) => {
                speech.export(&launch::doubtful_variables());
                (Outcome::Left(why), Vec::new())
            }
            Ok(None) => (Outcome::Silent, Vec::new()),
        };
        let rank = number("SLURM_PROCID").unwrap_or(local);
        let failed = step.policy.strict && matches!(outcome, Outcome::Left(_));
        let task = Task { rank, local, outcome, cautions, replaced_order };
        speech.print(&words_of(&step, &task));
        failed
    }

    /// What the plugin set against what is there now.
    fn compare(&self, speech: &mut Speech) {
        // Nothing is set in a step without devices, or in doubt.
        let Some(meant) = variable("GPU_ALIGN_UUIDS") else { return };
        let order = variable("CUDA_DEVICE_ORDER").unwrap_or_default();
        if order != "PCI_BUS_ID" {
            speech.print(&format!(
                "gpu-align: CUDA_DEVICE_ORDER was changed after launch: PCI_BUS_ID -> {}; look for \
                 a TaskProlog or shell file that sets it",
                shown(&order)
            ));
        }
        let now = variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let (_, _, said) = step_said();
        let known = self.gather(&said).inventory.ok();
        if differs(&now, &meant, known.as_ref()) {
            speech.print(&format!(
                "gpu-align: CUDA_VISIBLE_DEVICES was changed after launch: {meant} -> {}; look for \
                 a TaskProlog or shell file that sets it",
                shown(&now)
            ));
        }
    }
}

/// A TaskProlog can speak on the program's stdout only: so a doubt is said, and
/// what the words ask for task by task.
fn words_of(step: &Step, task: &Task) -> String {
    let nothing = Inventory::empty();
    let report = Report {
        node: &step.node,
        step: Some(&step.name),
        policy: &step.policy,
        inventory: step.inventory.as_ref().unwrap_or(&nothing),
        tasks: std::slice::from_ref(task),
    };
    let left = matches!(task.outcome, Outcome::Left(_));
    match step.policy.print {
        Print::Task => report.task_line(task).unwrap_or_default() + &report.notes(),
        Print::Json => report.json(),
        Print::Node if left => report.notes(),
        Print::Node | Print::Off => String::new(),
    }
}

/// The step's id, its kind, and what it was told.
fn step_said() -> (Option<u32>, Kind, Said) {
    let step_id = variable("SLURM_STEP_ID").and_then(|id| id.parse().ok());
    let kind = step_id.map_or(Kind::Batch, Kind::of);
    (step_id, kind, Said::read(kind, variable))
}

/// Whether a value of CUDA_VISIBLE_DEVICES names other devices than the UUIDs
/// that were meant. An index whose UUID cannot be told is no change.
fn differs(value: &str, meant: &str, known: Option<&Inventory>) -> bool {
    let reached: Vec<Device> =
        known.map(|known| reach(&nodes(known), may_open)).unwrap_or_default();
    let other = |(word, meant): (&str, &str)| match (word.parse::<usize>(), known) {
        (Err(_), _) => word != meant,
        (Ok(_), None) => false,
        (Ok(index), Some(known)) => match reached.get(index) {
            None => true,
            Some(device) => known.uuid(*device).is_some_and(|uuid| uuid.as_str() != meant),
        },
    };
    value.split(',').count() != meant.split(',').count()
        || value.split(',').zip(meant.split(',')).any(other)
}

/// A stranger's value, short enough for a line.
fn shown(value: &str) -> String {
    match value {
        "" => "(nothing)".to_owned(),
        _ => value.chars().filter(|c| !c.is_control()).take(400).collect(),
    }
}

fn variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}
