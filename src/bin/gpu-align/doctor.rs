//! `gpu-align doctor`: a page for someone lost.

mod container;
mod findings;
mod libraries;
mod mps;
mod parsers;
mod plugin;
mod processes;
mod python;
mod redact;
mod snippets;

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use gpu_align::node::driver;
use serde::Serialize;

use crate::ask;
use crate::inside::env::Env;
use crate::inside::gather;
use crate::inside::hands::{self, Hit};
use crate::inside::mps::Seen;
use crate::inside::scene::{ORDER, Scene, VISIBLE};
use crate::inside::screen::Screen;
use crate::inside::usage::Usage;
use crate::show::View;

use findings::{Finding, Level};
use processes::Running;
use redact::Redaction;

const EXAMPLES: &str = "\
Exit status:
  0  nothing to fix was found
  1  there is something to fix
  2  neither the driver nor CUDA could be looked at

Examples:
  gpu-align doctor
  srun --pty --gpu-align gpu-align doctor
  gpu-align doctor --redact > for-the-issue.txt

Reads no other variable's value than those that it lists, changes nothing, asks no
network, and needs neither root nor Slurm.";

/// Look at everything that can put a program on the wrong card, and say what to do
///
/// The environment and where it was set, the plugin, Slurm's words against what can be
/// opened, the driver and its libraries, containers, MPS, MIG, other processes, and the
/// Python frameworks of the active environment.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Doctor {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// Shorten UUIDs and paths, leave out users, host and homes, for a public issue
    #[arg(long)]
    redact: bool,
}

/// The variables that are looked at, and the only ones whose values are printed.
pub const VARIABLES: [&str; 24] = [
    VISIBLE,
    ORDER,
    "GPU_ALIGN_VERSION",
    "GPU_ALIGN_MODE",
    "GPU_ALIGN_CARD",
    "GPU_ALIGN_UUIDS",
    "SLURM_GPU_ALIGN",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURMD_TRES_BIND",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
];

/// All that the findings rest on.
pub struct Patient {
    pub scene: Scene,
    pub usage: Result<Usage, String>,
    /// The files that set CUDA_VISIBLE_DEVICES or CUDA_DEVICE_ORDER.
    pub hits: Vec<Hit>,
    pub above: Vec<hands::Ancestor>,
    pub driver: Option<String>,
    pub plugin: plugin::Plugin,
    pub libraries: Vec<libraries::Found>,
    pub python: Result<python::Python, String>,
    /// Lines of this folder's scripts that make numbers of the list's entries.
    pub snippets: Vec<snippets::Snippet>,
    pub running: Vec<Running>,
    /// The MPS daemon that programs here would talk to.
    pub mps: Seen,
    pub in_container: bool,
    /// What else could not be looked at.
    pub unseen: Vec<String>,
}

impl Patient {
    fn look() -> Patient {
        let root = Path::new("/");
        let env = Env::own();
        let usage = ask::usage(&env.0);
        let scene = gather::scene(env);
        let names = [VISIBLE, ORDER];
        let mut hits = hands::assignments(&hands::shell_files(root, &scene.env), &names);
        hits.extend(hands::task_prolog(&scene.env, &names));
        let mut unseen = Vec::new();
        match hands::batch_script(&scene.env, &names) {
            Ok(found) => hits.extend(found),
            Err(why) => unseen.push(why),
        }
        let running = usage.as_ref().map(|usage| processes::running(root, usage));
        Patient {
            above: hands::ancestors(root, std::process::id()),
            driver: driver::version(root).ok(),
            plugin: plugin::Plugin::look(&scene.env),
            libraries: libraries::look(root, &scene.env),
            python: python::look(&scene.env),
            snippets: snippets::look(Path::new(".")),
            running: running.unwrap_or_default(),
            mps: crate::inside::mps::look(root, &scene.env),
            in_container: ["/.dockerenv", "/run/.containerenv", "/.singularity.d"]
                .iter()
                .any(|mark| Path::new(mark).exists()),
            hits,
            unseen,
            usage,
            scene,
        }
    }
}

impl Doctor {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut patient = Patient::look();
        let redaction = self.redact.then(|| Redaction::of(&mut patient));
        let mut page = Page::of(&patient);
        if let Some(redaction) = redaction {
            page.redact(&redaction);
        }
        crate::print(&match self.json {
            true => serde_json::to_string_pretty(&page)? + "\n",
            false => page.text(Screen::stdout()),
        });
        Ok(ExitCode::from(page.exit))
    }
}

/// What is printed; the JSON form is this, `schema` 1.
#[derive(Debug, Serialize)]
pub struct Page {
    schema: u32,
    exit: u8,
    driver: Option<String>,
    /// The CUDA version that the driver offers.
    cuda: Option<String>,
    environment: Vec<Variable>,
    cards: View,
    processes: Vec<Running>,
    python: Option<python::Python>,
    findings: Vec<Finding>,
    unseen: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Variable {
    name: &'static str,
    value: String,
    /// The files and lines that set it.
    set_in: Vec<String>,
}

impl Page {
    pub fn of(patient: &Patient) -> Page {
        let env = &patient.scene.env;
        let variable = |name: &'static str| {
            let hits = patient.hits.iter().filter(|hit| hit.name == name);
            let set_in: Vec<String> =
                hits.map(|hit| format!("{}:{}", hit.file, hit.line)).collect();
            let value: String = env.get(name)?.chars().take(400).collect();
            let value = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            Some(Variable { name, value, set_in })
        };
        let cards = View::of(&patient.scene, false);
        let mut findings = findings::findings(patient);
        findings.sort_by_key(|finding| finding.level);
        let any = findings.iter().any(|f| matches!(f.level, Level::Wrong | Level::Warning));
        let mut unseen = patient.unseen.clone();
        unseen.extend(patient.usage.as_ref().err().cloned());
        unseen.extend(patient.python.as_ref().err().cloned());
        unseen.extend(patient.plugin.unseen.clone());
        unseen.extend(patient.mps.unseen());
        Page {
            schema: 1,
            exit: if cards.is_blind() { 2 } else { u8::from(any) },
            driver: patient.driver.clone(),
            cuda: cuda_version(&patient.scene).map(|(major, minor)| format!("{major}.{minor}")),
            environment: VARIABLES.into_iter().filter_map(variable).collect(),
            cards,
            processes: patient.running.clone(),
            python: patient.python.as_ref().ok().cloned(),
            findings,
            unseen,
        }
    }

    /// Redacts every text of the page, before any is wrapped.
    fn redact(&mut self, redaction: &Redaction) {
        let Page {
            schema: _,
            exit: _,
            driver,
            cuda,
            environment,
            cards,
            processes,
            python,
            findings,
            unseen,
        } = self;
        let mut texts: Vec<&mut String> = driver.iter_mut().chain(cuda).chain(unseen).collect();
        for Variable { name: _, value, set_in } in environment {
            texts.push(value);
            texts.extend(set_in);
        }
        texts.extend(cards.texts_mut());
        texts.extend(processes.iter_mut().flat_map(Running::texts_mut));
        texts.extend(python.iter_mut().flat_map(python::Python::texts_mut));
        for Finding { level: _, topic: _, what, why: _, todo } in findings {
            texts.extend([what, todo]);
        }
        for text in texts {
            *text = redaction.apply(text);
        }
    }

    pub fn text(&self, screen: Screen) -> String {
        let mut out = self.cards.text(screen);
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".into());
        out += &format!("\ndriver {}, CUDA {}\n", known(&self.driver), known(&self.cuda));
        if let Some(python) = &self.python {
            out += &screen.entry(&python.says());
        }
        out += "\nenvironment\n";
        for variable in &self.environment {
            let set = match variable.set_in.is_empty() {
                true => String::new(),
                false => format!("   <- {}", variable.set_in.join(", ")),
            };
            out += &screen.entry(&format!("{}={}{set}", variable.name, variable.value));
        }
        if self.environment.is_empty() {
            out += "  no variable that chooses cards is set\n";
        }
        if !self.processes.is_empty() {
            out += "\nprocesses on these cards\n";
            for process in &self.processes {
                out += &screen.entry(&process.says());
            }
        }
        out += "\nfindings\n";
        if self.findings.is_empty() {
            out += match self.cards.is_blind() {
                true => "  nothing could be compared\n",
                false => "  nothing to fix was found\n",
            };
        }
        for finding in &self.findings {
            out += &finding.text(screen);
        }
        for unseen in &self.unseen {
            out += &screen.sentence("not looked at:", 15, unseen);
        }
        out
    }
}

/// The CUDA version that the driver offers.
pub fn cuda_version(scene: &Scene) -> Option<(i32, i32)> {
    let version = scene.unfiltered.as_ref().ok()?.version?;
    Some((version / 1000, version % 1000 / 10))
}

#[cfg(test)]
mod tests;
