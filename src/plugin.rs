//! The hooks: what happens when, in which process. No decision is made here.
//!
//! slurmstepd reads the node, the gres list and the step's variables as root
//! before it forks, and foresees each task's part ([`init_post_opt`]); each task
//! asks the kernel and decides for itself if that is another, last thing before
//! its program starts ([`task_init`]).

use std::borrow::Cow;
use std::ffi::{CString, NulError};
use std::path::Path;
use std::time::Duration;

use crate::align::Caution;
use crate::align::plan::Plan;
use crate::align::policy::{Policy, Print, WordError, Words};
use crate::board::{Board, Slot};
use crate::device::{Device, Inventory, clip};
use crate::launch::{self, Decision, Foreseen, Step};
use crate::node::gather::{Gathered, gather};
use crate::reach::{self, Nodes, may_open};
use crate::report::{MAX_BYTES, Outcome as Fate, Report, Task, bounded};
use crate::slurm::files;
use crate::slurm::gres_conf::GresError;
use crate::slurm::plugstack::Site;
use crate::slurm::step::{self, Kind, Said};
use crate::spank::{
    self, Context, Outcome, SetenvRoom, SharedSlots, Spank, SpankError, StateCell, TaskLog,
};

/// How long a task waits for its siblings where they share a set of devices.
const PATIENCE: Duration = Duration::from_millis(250);

/// `print=task`: so many tasks of a node print their line; a step's words stay few.
const MAX_SPEAKERS: u32 = 128;

/// The same where the tasks share no page, and so cannot leave it to one.
const MAX_ALONE: u32 = 16;

/// What a user sets where an option cannot be given.
const WORDS_VARIABLE: &str = "SLURM_GPU_ALIGN";

static PLUGIN: StateCell<Plugin> = StateCell::new(Plugin::idle());

struct Plugin {
    site: Site,
    option: Option<Words>,
    /// What plugstack.conf or the option says and this node does not understand.
    refused: Option<String>,
    /// The step that this slurmstepd runs, if it is to be aligned.
    running: Option<Running>,
}

struct Running {
    step: Step,
    devices: Vec<Device>,
    nodes: Vec<Nodes>,
    foreseen: Option<Foreseen<Ready>>,
    board: Option<SharedSlots<Slot>>,
    /// Local task 0's stderr, for the report; slurmstepd keeps it until the
    /// last task is forked, or the stream would never end.
    log: Option<TaskLog>,
    forked: usize,
    /// slurmstepd's own process; a task is another one.
    stepd: u32,
}

/// A decision, its variables as Slurm takes them.
#[derive(Clone)]
struct Ready {
    plan: Plan,
    cautions: Vec<Caution>,
    variables: Vec<(CString, CString)>,
}

impl Ready {
    fn of(decision: Decision) -> Result<Ready, String> {
        let Decision { plan, cautions, variables } = decision;
        Ok(Ready { plan, cautions, variables: c_strings(variables)? })
    }
}

impl Plugin {
    const fn idle() -> Plugin {
        Plugin { site: Site::NOTHING, option: None, refused: None, running: None }
    }
}

/// In every program, first: the arguments of the line in plugstack.conf.
pub fn init(spank: &Spank<'_>, arguments: &[String]) -> Outcome {
    match Site::parse(arguments) {
        Ok(site) => {
            PLUGIN.with(|plugin| plugin.site = site);
            Outcome::Fine
        }
        Err(why) => {
            PLUGIN.with(|plugin| plugin.refused = Some(why.to_string()));
            complain(spank, &why.to_string())
        }
    }
}

/// `--gpu-align[=WORDS]` was given; `None` without a value. `remote`: in slurmstepd.
pub fn option(words: Option<&str>, remote: bool) -> Outcome {
    match words.unwrap_or_default().parse() {
        Ok(words) => {
            PLUGIN.with(|plugin| plugin.option = Some(words));
            Outcome::Fine
        }
        Err(why) => {
            let why = format!("--gpu-align: {why}");
            spank::error(&format!("gpu-align: {why}"));
            if !remote {
                return Outcome::Refused;
            }
            // A srun of another version took it: a doubt to be said (rule 6).
            PLUGIN.with(|plugin| {
                plugin.option = Some(Words::default());
                plugin.refused = Some(why);
            });
            Outcome::Fine
        }
    }
}

/// After the option callbacks; in slurmstepd as root.
pub fn init_post_opt(spank: &Spank<'_>) -> Outcome {
    match spank.context() {
        Context::Local | Context::Allocator => check_environment(spank),
        Context::Remote => {
            PLUGIN.with(|plugin| plugin.running = Running::gather(spank, plugin));
            Outcome::Fine
        }
        _ => Outcome::Fine,
    }
}

/// In slurmstepd as the user, before any task exists; fd 2 is local task 0's stderr.
pub fn user_init(_spank: &Spank<'_>) -> Outcome {
    PLUGIN.with(|plugin| {
        if let Some(running) = &mut plugin.running {
            running.board = SharedSlots::new(running.step.tasks).ok();
            running.log = TaskLog::of_stderr().ok();
        }
    });
    Outcome::Fine
}

/// In slurmstepd as root, once per task, for all tasks before any `task_init`.
pub fn task_post_fork(_spank: &Spank<'_>) -> Outcome {
    PLUGIN.with(|plugin| {
        if let Some(running) = &mut plugin.running {
            running.forked += 1;
            if running.forked >= running.step.tasks {
                running.log = None;
            }
        }
    });
    Outcome::Fine
}

/// In the task, as the user, in its cgroup.
pub fn task_init(spank: &Spank<'_>) -> Outcome {
    let outcome = PLUGIN.with(|plugin| plugin.running.as_ref()?.align(spank));
    outcome.flatten().unwrap_or(Outcome::Fine)
}

/// In slurmstepd, when a task has ended.
pub fn task_exit(spank: &Spank<'_>) -> Outcome {
    PLUGIN.with(|plugin| plugin.running.as_ref()?.ended(spank.task_id().ok()?));
    Outcome::Fine
}

/// Last, in every program.
pub fn exit(_spank: &Spank<'_>) -> Outcome {
    PLUGIN.with(|plugin| *plugin = Plugin::idle());
    Outcome::Fine
}

/// In srun, sbatch and salloc: a wrong word is refused before anything is submitted.
fn check_environment(spank: &Spank<'_>) -> Outcome {
    let words = std::env::var_os(WORDS_VARIABLE).unwrap_or_default();
    match words.to_string_lossy().parse::<Words>() {
        Ok(_) => Outcome::Fine,
        Err(why) => complain(spank, &format!("{WORDS_VARIABLE}: {why}")),
    }
}

/// Refuses in front of a user; on a node only says it, so that no fault of a
/// configuration drains the node.
fn complain(spank: &Spank<'_>, why: &str) -> Outcome {
    spank::error(&format!("gpu-align: {why}"));
    match spank.context() {
        Context::Local | Context::Allocator => Outcome::Refused,
        _ => Outcome::Fine,
    }
}

/// The job's environment as a function of the name.
fn environment(spank: &Spank<'_>) -> impl Fn(&str) -> Option<String> {
    move |name| spank.getenv(&CString::new(name).ok()?).ok().flatten()
}

/// What the job's SLURM_GPU_ALIGN asks for, or why it cannot be read.
fn words_of_job(spank: &Spank<'_>) -> Result<Option<Words>, String> {
    let name = CString::new(WORDS_VARIABLE).map_err(|why| why.to_string())?;
    match spank.getenv(&name) {
        Ok(Some(text)) if !text.is_empty() => {
            text.parse().map(Some).map_err(|why: WordError| format!("{WORDS_VARIABLE}: {why}"))
        }
        Err(why @ SpankError::TooLong { .. }) => Err(why.to_string()),
        Ok(_) | Err(_) => Ok(None),
    }
}

impl Running {
    /// Reads what a step rests on; `None` if it is not to be aligned.
    fn gather(spank: &Spank<'_>, plugin: &Plugin) -> Option<Running> {
        // What stays of this must not break up the block, or every task pays for a new one.
        let _room = SetenvRoom::new();
        spank.prepare_tasks();
        let env = environment(spank);
        let kind = Kind::of(spank.step_id().ok()?);
        // Words that are not understood still ask for something: a doubt to be said (rule 6).
        let (words, refused) = match words_of_job(spank) {
            Ok(words) => (words, None),
            Err(why) => (Some(Words::default()), Some(why)),
        };
        let places = plugin.site.default.iter().chain(&words).chain(&plugin.option);
        let policy = Policy::resolve(places);
        if policy.is_off() || kind == Kind::Extern {
            return None;
        }
        let said = Said::read(kind, &env);
        let Gathered { inventory, gap } = match refused.or(plugin.refused.clone()) {
            None => gather(Path::new("/"), &plugin.site.sources(), said.holds_devices()),
            Some(why) => Gathered { inventory: Err(why), gap: None },
        };
        // slurmd gives it to slurmstepd; the job's environment gets it later.
        let node = std::env::var("SLURMD_NODENAME").unwrap_or_else(|_| "this node".to_owned());
        let own = plugin.site.gres_conf.as_deref();
        // Without a list that can be trusted, numbers are read as the neighbours read them.
        let list = match &inventory {
            Ok(known) => files::gres_list(own, &node, known),
            Err(_) => Ok(None),
        };
        let step = Step {
            name: step::name(spank.job_id().ok()?, spank.step_id().ok()?),
            node,
            policy,
            cards_gone: matches!(list, Err(GresError::CardsGone { .. })),
            positions: list.ok().flatten().map(|list| list.devices()),
            said,
            reading: plugin.site.unconstrained,
            tasks: spank.local_task_count().ok()? as usize,
            inventory,
            gap,
        };
        let devices = step.inventory.iter().flat_map(Inventory::devices).collect();
        let nodes = step.inventory.iter().flat_map(reach::nodes).collect();
        let foreseen = step.foresee(|decision| Ready::of(decision).ok());
        Some(Running {
            step,
            devices,
            nodes,
            foreseen,
            board: None,
            log: None,
            forked: 0,
            stepd: std::process::id(),
        })
    }

    /// Decides for this task, sets its environment and says what it did.
    fn align(&self, spank: &Spank<'_>) -> Option<Outcome> {
        let room = SetenvRoom::new();
        let local = spank.task_id().ok()?;
        let env = environment(spank);
        let reached = reach::reach(&self.nodes, may_open);
        let decide = || {
            let turn = |held: &[Device]| self.board()?.turn(local as usize, held, PATIENCE);
            let decision = self.step.decide(local as usize, &reached, &env, turn)?;
            decision.map(|decision| Ready::of(decision).map(Cow::Owned)).transpose()
        };
        let foreseen = self.foreseen.as_ref();
        let ready = match foreseen.and_then(|all| all.holds(local as usize, &reached, &env)) {
            Some(ready) => Ok(Some(Cow::Borrowed(ready))),
            None => decide(),
        };
        let old_order = env("CUDA_DEVICE_ORDER").filter(|order| order != "PCI_BUS_ID");
        let mut task = Task {
            // Slurm's item counts within a component of a heterogeneous step.
            rank: env("SLURM_PROCID")
                .and_then(|rank| rank.parse().ok())
                .or(spank.task_global_id().ok())
                .unwrap_or(local),
            local,
            cautions: Vec::new(),
            replaced_order: None,
            outcome: Fate::Silent,
        };
        task.outcome = match ready {
            Ok(None) => Fate::Silent,
            Ok(Some(ready)) => {
                task.cautions.clone_from(&ready.cautions);
                match set(spank, &ready.variables, room) {
                    Ok(()) => Fate::Aligned(ready.plan.clone()),
                    Err(why) => Fate::Left(why),
                }
            }
            Err(why) => {
                let set = c_strings(launch::doubtful_variables())
                    .and_then(|variables| set(spank, &variables, room));
                Fate::Left(set.err().unwrap_or(why))
            }
        };
        if task.outcome != Fate::Silent {
            task.replaced_order = old_order.map(|order| clip(&order));
        }
        self.say(&task);
        let failed = self.step.policy.strict && matches!(task.outcome, Fate::Left(_));
        if failed && std::process::id() != self.stepd {
            // Slurm ignores the answer of a plugin that is `optional`.
            spank::end_task();
        }
        Some(if failed { Outcome::Refused } else { Outcome::Fine })
    }

    fn board(&self) -> Option<Board<'_>> {
        let slots = self.board.as_deref()?;
        Some(Board { slots, devices: &self.devices })
    }

    /// Publishes a task's fate; the last task of the node writes the report.
    fn say(&self, task: &Task) {
        let alone = std::slice::from_ref(task);
        let print = self.step.policy.print;
        if print == Print::Task && task.local <= MAX_SPEAKERS {
            let line = match task.local < MAX_SPEAKERS {
                true => self.report(alone).task_line(task).unwrap_or_default(),
                false => format!("gpu-align: no lines from local rank {MAX_SPEAKERS} on\n"),
            };
            write(TaskLog::of_stderr().ok().as_ref(), &line);
        }
        match self.board() {
            Some(board) => {
                board.finish(task);
                if board.claim_report() {
                    write(self.log.as_ref(), &self.text(&board.tasks()));
                }
            }
            // More tasks than can share a page: the first ones speak for themselves.
            None if task.local < MAX_ALONE => {
                let text = bounded(self.text(alone), MAX_BYTES / MAX_ALONE as usize);
                write(TaskLog::of_stderr().ok().as_ref(), &text);
            }
            None => {}
        }
    }

    /// A task that ended before it could speak must not keep the others' report
    /// back. slurmstepd's fd 2 is still local task 0's stderr here.
    fn ended(&self, local: u32) -> Option<()> {
        let board = self.board()?;
        board.ended(local as usize);
        if board.claim_report() {
            write(TaskLog::of_stderr().ok().as_ref(), &self.text(&board.tasks()));
        }
        Some(())
    }

    fn text(&self, tasks: &[Task]) -> String {
        let report = self.report(tasks);
        match self.step.policy.print {
            Print::Node => report.block(),
            Print::Task => report.notes(),
            Print::Json => report.json(),
            Print::Off if self.step.policy.strict => report.doubts(),
            Print::Off => String::new(),
        }
    }

    fn report<'a>(&'a self, tasks: &'a [Task]) -> Report<'a> {
        static NO_CARDS: Inventory = Inventory::empty();
        Report {
            node: &self.step.node,
            step: Some(&self.step.name),
            policy: &self.step.policy,
            inventory: self.step.inventory.as_ref().unwrap_or(&NO_CARDS),
            tasks,
        }
    }
}

fn c_strings(variables: Vec<(&str, String)>) -> Result<Vec<(CString, CString)>, String> {
    let pair = |(name, value)| Ok((CString::new(name)?, CString::new(value)?));
    let pairs: Result<_, NulError> = variables.into_iter().map(pair).collect();
    pairs.map_err(|why| why.to_string())
}

fn set(
    spank: &Spank<'_>,
    variables: &[(CString, CString)],
    room: SetenvRoom,
) -> Result<(), String> {
    drop(room);
    for (name, value) in variables {
        spank.setenv(name, value).map_err(|why| {
            format!("{} could not be set ({why}); ask the admin", name.to_string_lossy())
        })?;
    }
    Ok(())
}

fn write(log: Option<&TaskLog>, text: &str) {
    if let (Some(log), false) = (log, text.is_empty()) {
        // Nowhere is left to say that the log itself cannot be written.
        let _ = log.write_all(text);
    }
}
