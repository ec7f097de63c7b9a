//! `gpu-align check`: a node's Slurm configuration against the node itself.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use gpu_align::device::Inventory;
use gpu_align::node::capabilities;
use gpu_align::node::stock::{Fault, FaultKind, Stock};
use gpu_align::slurm::conf::{self, ConfError};
use gpu_align::slurm::files;
use gpu_align::slurm::gres_conf::GresError;
use gpu_align::slurm::plugstack::Site;
use gpu_align::slurm::plugstack_conf::{self, PlugstackError};
use gpu_align::spank;
use serde::Serialize;

use crate::ask;
use crate::given::{Given, given};
use crate::inside::screen::count;
use crate::prolog::host_name;
use crate::release;

const EXAMPLES: &str = "\
Exit status:
  0  nothing to say
  1  a problem was found
  2  something could not be looked at, and nothing worse was found

Examples:
  gpu-align check
  gpu-align check --json | jq -r '.[] | select(.problem) | .what'
  SLURM_CONF=/srv/slurm/slurm.conf gpu-align check --node gpu07

JSON: a list of objects with problem (false: could not look), what, where and advice.";

/// Compare this node's Slurm configuration with the cards that it has
///
/// Looks at gres.conf, cgroup.conf, plugstack.conf, the cards and Slurm's version;
/// as root or as a user.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Check {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// The node's name in slurm.conf [default: SLURMD_NODENAME, or this host's]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// gres.conf, where it is not beside slurm.conf
    #[arg(long, value_name = "PATH")]
    gres_conf: Option<PathBuf>,
    /// How long NVML may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

/// One line of the answer.
#[derive(Debug, Serialize)]
struct Finding {
    /// false: it could not be looked at.
    problem: bool,
    what: String,
    r#where: String,
    advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kind = if self.problem { "problem" } else { "could not look" };
        write!(f, "{kind}: {}: {}; {}", self.r#where, self.what, self.advice)
    }
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn problem(&mut self, at: impl fmt::Display, what: impl Into<String>, advice: &str) {
        self.add(true, at.to_string(), what.into(), advice);
    }

    fn blind(&mut self, at: impl fmt::Display, what: impl Into<String>, advice: &str) {
        self.add(false, at.to_string(), what.into(), advice);
    }

    fn add(&mut self, problem: bool, at: String, what: String, advice: &str) {
        self.0.push(Finding { problem, what, r#where: at, advice: advice.to_owned() });
    }

    /// The error names the file, which is said once whatever it is needed for.
    fn unreadable(&mut self, at: &str, error: &impl ToString) {
        let error = error.to_string();
        let what = error.rsplit_once("; ").map_or(error.as_str(), |(what, _)| what);
        if self.0.iter().all(|finding| finding.what != what) {
            self.blind(at, what, "correct its path, or run this as root");
        }
    }

    /// A sentence that ends in its own advice.
    fn sentence(&mut self, problem: bool, at: &str, sentence: &str) {
        let (what, advice) = sentence.rsplit_once("; ").unwrap_or((sentence, "ask the admin"));
        self.add(problem, at.to_owned(), what.to_owned(), advice);
    }
}

impl Check {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mut findings = Findings::default();
        let node = self.node.clone().or_else(|| env::var("SLURMD_NODENAME").ok());
        let node = node.unwrap_or_else(host_name);
        let constrained = check_cgroup(&mut findings);
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        let inventory = match ask::stock(Path::new("/"), deadline) {
            Ok(stock) => {
                check_cards(&stock, &mut findings);
                stock.inventory()
            }
            Err(error) => {
                findings.sentence(false, "driver", &error.to_string());
                Inventory::empty()
            }
        };
        self.check_gres(&node, &inventory, constrained, &mut findings);
        check_plugstack(&mut findings);
        check_release(&mut findings);
        let Findings(findings) = findings;
        let text = match self.json {
            true => serde_json::to_string_pretty(&findings)? + "\n",
            false => findings.iter().map(|finding| format!("{finding}\n")).collect(),
        };
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::from(match findings.iter().any(|finding| finding.problem) {
            true => 1,
            false if findings.is_empty() => 0,
            false => 2,
        }))
    }

    fn check_gres(
        &self,
        node: &str,
        inventory: &Inventory,
        constrained: Option<bool>,
        findings: &mut Findings,
    ) {
        let root = Path::new("/");
        let counted = files::configured_gpus(node);
        let listed = files::gres_list(self.gres_conf.as_deref(), node, inventory);
        match (given(node, counted, &listed), counted) {
            // Neither Slurm nor the node knows of any card.
            (Given::Nothing, _) if inventory.is_empty() => return,
            (Given::Nothing, Some(_)) => {
                let what = format!(
                    "node {node} has {} and Slurm gives out none of them",
                    count(inventory.cards().len(), "card")
                );
                let advice = "add them to gres.conf and to slurm.conf's Gres=, or every job can \
                              open them";
                return findings.problem("gres.conf", what, advice);
            }
            (Given::Nothing, None) if listed.is_err() => {
                let what = format!("neither it nor slurm.conf names node {node}");
                let advice = "give the node's name in slurm.conf with --node";
                return findings.blind("gres.conf", what, advice);
            }
            (Given::Torn(why), _) => return findings.sentence(true, "gres.conf", &why),
            (Given::Nothing | Given::Cards, _) => {}
        }
        let list = match listed {
            Ok(Some(list)) => list,
            // NVML's silence is said already.
            Err(GresError::CardsGone { .. }) if !capabilities::are_known(root, inventory) => return,
            Ok(None) => {
                let advice = "run this where slurmd runs, or give --gres-conf";
                return findings.blind("gres.conf", "it was not found", advice);
            }
            Err(GresError::Conf(error @ ConfError::Read { .. })) => {
                return findings.unreadable("gres.conf", &error);
            }
            Err(error) => return findings.sentence(true, "gres.conf", &error.to_string()),
        };
        let at = &list.source().display();
        for position in list.positions().filter(|&position| list.card(position).is_none()) {
            let file = list.file(position).unwrap_or_default();
            let what = format!("position {position} has no card behind its File {file}");
            findings.problem(at, what, "correct it, or look for the lost card in the kernel log");
        }
        if let Some(wanted) = counted.filter(|&wanted| list.len() < wanted) {
            let what = format!(
                "it gives node {node} {} of the {wanted} GPUs that slurm.conf counts, so slurmctld \
                 drains it",
                list.len()
            );
            findings.problem(at, what, "correct one of the two, Type= and Gres= included");
        }
        let surplus = list.surplus();
        if let Some(wanted) = counted.filter(|_| !surplus.is_empty()) {
            let files: Vec<&str> = surplus.iter().map(|device| device.file.as_str()).collect();
            let what = format!(
                "slurm.conf counts {wanted} GPUs on node {node} and this file also names {}",
                files.join(", ")
            );
            let advice = "raise Gres=, Type= included, or take them out: nobody can use such a card \
                          and every job can open it";
            findings.problem(at, what, advice);
        }
        let mut held = BTreeMap::new();
        for position in list.positions() {
            let Some(device) = list.device(position) else { continue };
            if let Some(first) = held.insert(device, position) {
                let what = format!("positions {first} and {position} are the same card");
                findings.problem(at, what, "list each File once, or two jobs get that card");
            }
        }
        for (rank, card) in inventory.cards().iter().enumerate() {
            if list.is_configured(rank) || surplus.iter().any(|device| device.card == Some(rank)) {
                continue;
            }
            let what = format!("card {} (/dev/nvidia{}) is not configured", card.pci, card.minor);
            let advice = "add its File, or nobody can use it and every job can open it";
            findings.problem(at, what, advice);
        }
        if constrained == Some(false) && !list.is_in_pci_order() {
            findings.problem(
                at,
                format!("positions are not in PCI order on node {node}, which does not constrain devices"),
                "set ConstrainDevices=yes, or list the Files in the order of nvidia-smi -L",
            );
        }
    }
}

/// One of Slurm's files, where it is found.
fn find(name: &str, findings: &mut Findings) -> Result<Option<PathBuf>, Told> {
    files::first(files::candidates(name)).map_err(|error| {
        findings.unreadable(name, &error);
        Told
    })
}

/// A finding says why.
struct Told;

fn check_cgroup(findings: &mut Findings) -> Option<bool> {
    let Some(path) = find("cgroup.conf", findings).ok()? else {
        let advice = "write ConstrainDevices=yes into cgroup.conf, or run this where slurmd runs";
        findings.blind("cgroup.conf", "it was not found", advice);
        return None;
    };
    match files::constrains_devices(&path) {
        Ok(true) => check_task_plugin(findings),
        Ok(false) => {
            let what = "it lacks ConstrainDevices=yes, so every job can open every card";
            findings.problem(path.display(), what, "set it and restart slurmd");
            Some(false)
        }
        Err(error) => {
            findings.unreadable("cgroup.conf", &error);
            None
        }
    }
}

/// Whether anybody does what cgroup.conf says.
fn check_task_plugin(findings: &mut Findings) -> Option<bool> {
    let path = find("slurm.conf", findings).ok()?;
    match path.as_deref().map(files::has_task_cgroup) {
        Some(Ok(false)) => {
            let at = path.unwrap_or_default();
            let what = "TaskPlugin lacks task/cgroup, so ConstrainDevices=yes does nothing";
            findings.problem(at.display(), what, "add it and restart slurmctld and slurmd");
            Some(false)
        }
        Some(Err(error)) => {
            findings.unreadable("slurm.conf", &error);
            None
        }
        Some(Ok(true)) | None => Some(true),
    }
}

fn check_cards(stock: &Stock, findings: &mut Findings) {
    // A job's cgroup hides the other jobs' cards, and that is right.
    let is_problem = |fault: &Fault| fault.kind != FaultKind::NoPermission;
    if let Some(fault) = &stock.nvml {
        findings.sentence(is_problem(fault), "NVML", &fault.why);
    }
    for card in &stock.cards {
        let at = format!("card {}", card.pci);
        if let Some(fault) = &card.fault {
            findings.sentence(is_problem(fault), &at, &fault.why);
        }
        if card.persistence == Some(false) {
            let what = "persistence is off, so each first use of it takes seconds";
            findings.problem(&at, what, "run nvidia-persistenced, or nvidia-smi -pm 1");
        }
    }
    for difference in &stock.differences {
        findings.sentence(true, "driver and NVML", difference);
    }
}

fn check_plugstack(findings: &mut Findings) {
    let Ok(slurm_conf) = find("slurm.conf", findings) else {
        return;
    };
    let lines = match slurm_conf.as_deref().map(conf::read).transpose() {
        Ok(lines) => lines.unwrap_or_default(),
        Err(error) => return findings.unreadable("slurm.conf", &error),
    };
    let path = match plugstack_conf::find(&lines, files::candidates("plugstack.conf")) {
        Ok(Some(path)) => path,
        Ok(None) => {
            let what = "it was not found, so no job is aligned";
            return findings.problem("plugstack.conf", what, "add gpu-align's line, see slurm/");
        }
        Err(error) => return findings.unreadable("plugstack.conf", &error),
    };
    let entries = match plugstack_conf::read(&path) {
        Ok(entries) => entries,
        Err(error @ PlugstackError::Read { .. }) => {
            return findings.unreadable("plugstack.conf", &error);
        }
        Err(error @ PlugstackError::Endless(_)) => {
            return findings.sentence(true, "plugstack.conf", &error.to_string());
        }
    };
    let Some(place) = entries.iter().position(|entry| entry.is_gpu_align()) else {
        let what = "no line loads gpu-align, so no job is aligned";
        return findings.problem(path.display(), what, "add gpu-align's line, see slurm/");
    };
    let entry = &entries[place];
    let at = format!("{}:{}", entry.file.display(), entry.line);
    check_plugin_file(&at, &entry.plugin, files::value(&lines, "PluginDir"), findings);
    let later = entries[place..].iter().any(|e| e.plugin.to_string_lossy().contains("pyxis"));
    if later {
        let what = "gpu-align is listed before pyxis";
        findings.problem(&at, what, "list it after pyxis, so that it speaks in the container");
    }
    match Site::parse(&entry.arguments) {
        Err(error) => findings.sentence(true, &at, &error.to_string()),
        Ok(site) => {
            let helper = site.sources().helper;
            let runs = fs::metadata(&helper)
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
            if !runs {
                let what = format!("the helper {} cannot be run", helper.display());
                findings.problem(&at, what, "install gpu-align there, or write helper=PATH");
            }
        }
    }
}

/// A plugin is named by its full path, or lies in one of PluginDir's folders.
fn check_plugin_file(at: &str, plugin: &Path, folders: Option<String>, findings: &mut Findings) {
    let name = plugin.display();
    let advice = "install it, or every srun fails where the line is required";
    match folders {
        _ if plugin.is_absolute() => {
            if !plugin.exists() {
                findings.problem(at, format!("{name} is not there"), advice);
            }
        }
        Some(folders) => {
            if !folders.split(':').any(|folder| Path::new(folder).join(plugin).exists()) {
                findings.problem(at, format!("{name} is not in PluginDir {folders}"), advice);
            }
        }
        None => {
            let what =
                format!("{name} lies where Slurm was built to look, and slurm.conf does not say");
            findings.blind(at, what, "write its full path, as make install does");
        }
    }
}

/// The plugin file answers for the releases in its table only.
fn check_release(findings: &mut Findings) {
    let advice = "compare `slurmd -V` with the releases in the README by hand";
    let Some(slurmd) = release::find("slurmd") else {
        return findings.blind("slurmd", "it was not found", advice);
    };
    let at = slurmd.display();
    match release::ask(&slurmd) {
        Ok(Some((major, minor))) if spank::supports(major, minor) => {}
        Ok(Some((major, minor))) => findings.problem(
            at,
            format!(
                "this is Slurm {major}.{minor:02}, which gpu-align {} does not know",
                env!("CARGO_PKG_VERSION")
            ),
            "install a gpu-align that does, or Slurm refuses to load it",
        ),
        Ok(None) => findings.blind(at, "-V does not tell the version", advice),
        Err(error) => findings.blind(at, error.to_string(), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_of_what_where_and_what_to_do() {
        let mut findings = Findings::default();
        findings.sentence(true, "NVML", "it hangs; reboot");
        findings.blind("slurmd", "it was not found", "look");
        let lines: Vec<String> = findings.0.iter().map(Finding::to_string).collect();
        assert_eq!(
            lines,
            ["problem: NVML: it hangs; reboot", "could not look: slurmd: it was not found; look"]
        );
    }
}
