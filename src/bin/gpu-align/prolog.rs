//! `gpu-align prolog`: refreshes the node's record, says what is wrong with the
//! node, and leaves a record of the job's cards.
//!
//! Invariant: it ends by its deadline and, unless `--drain` asks otherwise,
//! with 0: a nonzero Prolog drains the node and requeues the job.

use std::env;
use std::io::{self, Write};
use std::path::{self, Path, PathBuf};
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use gpu_align::device::{Card, Inventory};
use gpu_align::node::capabilities;
use gpu_align::node::record::{self, Now};
use gpu_align::node::stock::Stock;
use gpu_align::slurm::files;
use gpu_align::slurm::gres_conf::GresError;

use crate::ask;
use crate::drain::{Drain, Problem, USUAL};
use crate::given::{Given, given};
use crate::inventory::json;
use crate::job::JobRecord;
use crate::numbering::{Cards, Numbering};

const EXAMPLES: &str = "\
Exit status:
  0  always, unless --drain is given
  1  --drain is given and one of its faults was found: Slurm drains the node and
     requeues the job
  2  the options cannot be understood: Slurm drains the node for that, too

Examples:
  gpu-align prolog                          what slurm/prolog.d/50-gpu-align runs
  gpu-align prolog --drain                  drain for missing, lost and mismatch
  gpu-align prolog --drain=lost,unanswered  drain for these two only

The job's record, /run/gpu-align/jobs/JOBID.json, is an object with schema (1), job,
node, source (the variable that named the cards), unknown and cards: position (Slurm's
number), rank (nvidia-smi's index on the host), minor, pci, uuid, model and slice (null
for a whole card). unknown lists the positions whose card is not there or cannot be
told: under AutoDetect behind a card that is gone, or where gres.conf cannot be read.
A line on stderr says why.";

/// What is left of the deadline for everything but NVML.
const REST: Duration = Duration::from_millis(400);

/// Refresh the node's record and check its cards; run it as root from Slurm's Prolog
///
/// Writes /run/gpu-align/node.json for the plugin, says one line for each problem on
/// stderr and, for a job, writes /run/gpu-align/jobs/JOBID.json.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Prolog {
    /// The node's record, as plugstack.conf's record= says
    #[arg(long, value_name = "PATH", default_value = record::PATH,
          value_parser = PathBufValueParser::new().try_map(path::absolute::<PathBuf>))]
    record: PathBuf,
    /// The folder of the jobs' records
    #[arg(long, value_name = "PATH", default_value = JOBS)]
    jobs: PathBuf,
    /// gres.conf, where it is not beside slurm.conf
    #[arg(long, value_name = "PATH")]
    gres_conf: Option<PathBuf>,
    /// How long all of it may take, even when NVML hangs
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// Exit with 1, and so drain the node, when one of these faults is found
    #[arg(long, value_name = "FAULTS", num_args = 0..=1, require_equals = true,
          value_delimiter = ',', default_missing_values = USUAL.split(','))]
    drain: Option<Vec<Drain>>,
}

/// Where jobs' records lie.
pub const JOBS: &str = "/run/gpu-align/jobs";

impl Prolog {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let allowed = Duration::from_secs(self.timeout);
        self.watch(allowed);
        let deadline = Instant::now() + allowed - REST;
        let mut problems = Vec::new();
        self.look(deadline, &mut problems);
        for problem in &problems {
            say(&problem.line);
        }
        let drains = problems.iter().any(|problem| self.drains(problem.kind));
        Ok(ExitCode::from(u8::from(drains)))
    }

    fn drains(&self, kind: Drain) -> bool {
        self.drain.as_ref().is_some_and(|faults| faults.contains(&kind))
    }

    /// Not only NVML can hang: a stuck driver's /proc does too.
    fn watch(&self, allowed: Duration) {
        let code = i32::from(self.drains(Drain::Unanswered));
        let seconds = self.timeout;
        thread::spawn(move || {
            thread::sleep(allowed);
            say(&format!("prolog was not done within {seconds} s; look at the kernel log"));
            process::exit(code);
        });
    }

    fn look(&self, deadline: Instant, problems: &mut Vec<Problem>) {
        let root = Path::new("/");
        let slurms_name = env::var("SLURMD_NODENAME").ok();
        let node = slurms_name.clone().unwrap_or_else(host_name);
        let configured = files::configured_gpus(&node);
        // At boot Slurm does not say which node this is, and a host may have another name.
        let is_named = slurms_name.is_some() || configured.is_some();
        let seen = record::seen_this_boot(&self.record, root);
        let list = |known: &Inventory| match is_named {
            true => files::gres_list(self.gres_conf.as_deref(), &node, known),
            false => Ok(None),
        };
        let constrained = files::constrained();
        let numbering = |inventory: Inventory, gone: Vec<Card>| {
            let slices_known = capabilities::are_known(root, &inventory);
            let cards = Cards { inventory, gone, slices_known };
            Numbering::new(cards, constrained, configured, list)
        };
        let numbering = match ask::stock(root, deadline) {
            Ok(mut stock) => {
                stock.remember(seen);
                node_problems(&stock, problems);
                let known = self.refresh(root, &stock, problems);
                let numbering = numbering(known, stock.gone);
                list_problems(&node, &numbering, problems);
                numbering
            }
            Err(error) => {
                let numbering = numbering(Inventory::empty(), seen);
                // A node without a driver and without configured cards has none.
                if !numbering.expects_cards() {
                    return;
                }
                problems.push(Problem::new(Drain::Missing, error.to_string()));
                numbering
            }
        };
        if let Ok(job) = env::var("SLURM_JOB_ID") {
            self.record_job(job, node.clone(), &numbering, problems);
        }
    }

    /// Writes the record if NVML spoke; while it is silent, an older record that
    /// is still believed knows more than a new one would. Returns what is known.
    fn refresh(&self, root: &Path, stock: &Stock, problems: &mut Vec<Problem>) -> Inventory {
        if stock.nvml.is_some() {
            let known = stock.inventory();
            let now = Now::read(root, &known);
            let older = now.and_then(|now| record::read(&self.record, &now));
            return older.map_or(known, Inventory::new);
        }
        let written = json(stock).map_err(|error| error.to_string()).and_then(|text| {
            record::write(&self.record, text.as_bytes()).map_err(|error| error.to_string())
        });
        if let Err(why) = written {
            problems.push(Problem::new(Drain::Record, why));
        }
        stock.inventory()
    }

    fn record_job(
        &self,
        job: String,
        node: String,
        numbering: &Numbering,
        problems: &mut Vec<Problem>,
    ) {
        let Some(path) = job_path(&self.jobs, &job) else {
            return;
        };
        let env = |name: &str| env::var(name).ok();
        let record = JobRecord::of(job, node, env, numbering, problems);
        let written = serde_json::to_vec(&record)
            .map_err(|error| error.to_string())
            .and_then(|text| record::write(&path, &text).map_err(|error| error.to_string()));
        if let Err(why) = written {
            problems.push(Problem::new(Drain::Record, why));
        }
    }
}

/// A job's record; `None` for what is no job id.
pub fn job_path(jobs: &Path, job: &str) -> Option<PathBuf> {
    let number = !job.is_empty() && job.len() < 20 && job.bytes().all(|b| b.is_ascii_digit());
    number.then(|| jobs.join(format!("{job}.json")))
}

fn node_problems(stock: &Stock, problems: &mut Vec<Problem>) {
    let faults = stock.nvml.iter().chain(stock.cards.iter().filter_map(|c| c.fault.as_ref()));
    problems.extend(faults.map(|fault| Problem::new(Drain::of(fault), fault.why.clone())));
    let differences = stock.differences.iter();
    problems.extend(differences.map(|line| Problem::new(Drain::Difference, line.clone())));
    for card in &stock.gone {
        problems.push(Problem::new(
            Drain::Missing,
            format!(
                "card {} was there earlier in this boot and is gone, {} cards are left; look for \
                 Xid in the kernel log",
                card.pci,
                stock.cards.len()
            ),
        ));
    }
}

fn list_problems(node: &str, numbering: &Numbering, problems: &mut Vec<Problem>) {
    match given(node, numbering.configured(), numbering.list()) {
        Given::Cards => {}
        Given::Nothing => return,
        Given::Torn(why) => return problems.push(Problem::new(Drain::Other, why)),
    }
    let list = match numbering.list() {
        Ok(Some(list)) => list,
        Ok(None) => return,
        // NVML's silence is said already.
        Err(GresError::CardsGone { .. }) if !numbering.slices_known() => return,
        Err(error) => {
            let kind = match error {
                GresError::CardsGone { .. } => Drain::Missing,
                _ => Drain::Other,
            };
            return problems.push(Problem::new(kind, error.to_string()));
        }
    };
    let source = list.source().display();
    for position in list.positions().filter(|&position| list.card(position).is_none()) {
        problems.push(Problem::new(
            Drain::Missing,
            format!(
                "position {position} of {source} has no card behind its File; correct it, or look \
                 for the lost card"
            ),
        ));
    }
    if !numbering.constrained() && !list.is_in_pci_order() {
        problems.push(Problem::new(
            Drain::Other,
            format!(
                "{source} is not in PCI order and devices are not constrained, so jobs without \
                 gpu-align count other cards than Slurm; set ConstrainDevices=yes, or list the \
                 Files in the order of nvidia-smi -L"
            ),
        ));
    }
}

/// This host's short name, slurmd's own default for its node's.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn say(line: &str) {
    // Whoever closed stderr does not want to know.
    let _ = writeln!(io::stderr(), "gpu-align: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn a_record_without_a_folder_lies_in_the_working_one() {
        let line = ["gpu-align", "prolog", "--record=node.json"];
        let Command::Prolog(prolog) = Arguments::parse_from(line).command else { unreachable!() };
        assert_eq!(prolog.record, env::current_dir().unwrap().join("node.json"));
    }
}
