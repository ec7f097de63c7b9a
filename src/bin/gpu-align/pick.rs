//! `gpu-align pick`: the freest cards of a machine that several people or
//! programs share without a scheduler.

mod choice;
mod holders;

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use gpu_align::device::Device;
use regex_lite::Regex;

use crate::inside::env::{Env, shell_of};
use crate::inside::gather;
use crate::inside::scene::{ORDER, PCI_ORDER, Scene, VISIBLE};
use crate::inside::screen::size;
use crate::inside::usage::Usage;
use crate::show::export_lines;
use crate::{ask, become_command};

use choice::{Candidate, Wishes, choose};
use holders::{AsPicked, Holders};

const EXAMPLES: &str = "\
The order: cards without a compute process first, then by load, then by free memory, then
by bus. A card is held until the process that picked it ends: COMMAND, or the shell that
the export lines are for (--holder names another). Other pickers of the same user on this
node pass it over; other users' processes are seen by their use of the card.

Exit status:
  0    picked; with COMMAND, the command's own
  1    not enough cards fit, or fit in time; at once where waiting cannot help
  2    the cards could not be looked at, or this is a step of several tasks
  126  COMMAND cannot be started
  127  COMMAND is not there

Examples:
  eval \"$(gpu-align pick)\"
  gpu-align pick -n 2 --min-free 20GiB -- python train.py
  gpu-align pick --model 'A100|H100' --max-util 10 --wait 5m -- ./app";

/// Choose the freest cards among those that this process can open
///
/// Prints lines for a shell's eval, or becomes COMMAND with the cards set. Two pickers at
/// once do not choose the same card.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Pick {
    /// How many cards
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..))]
    number: u16,
    /// Only cards with so much free memory, like 20GiB
    #[arg(long, value_name = "SIZE")]
    min_free: Option<Size>,
    /// Only cards that are busy for at most so many percent of the time
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    max_util: Option<u32>,
    /// Only cards whose model matches, like 'A100|H100'
    #[arg(long, value_name = "REGEX")]
    model: Option<Regex>,
    /// Only cards near this process's CPUs
    #[arg(long)]
    near: bool,
    /// Wait so long for cards that fit, like 30s, 5m or 2h
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// The process that holds the cards [default: COMMAND, or the caller's shell]
    #[arg(long, value_name = "PID")]
    holder: Option<u32>,
    /// Become this command with the cards set
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Between looks while waiting.
const PAUSE: Duration = Duration::from_millis(200);

impl Pick {
    fn number(&self) -> usize {
        usize::from(self.number)
    }

    pub fn run(self) -> anyhow::Result<ExitCode> {
        let scene = gather::quick_scene(Env::own());
        refuse_in_a_step(&scene)?;
        let allotted = scene.allotted().map_err(anyhow::Error::msg)?;
        let wishes = Wishes {
            number: self.number(),
            min_free: self.min_free.map(|size| size.0),
            max_load: self.max_util,
            model: self.model.clone(),
            near: self.near,
        };
        let holder = match (self.holder, self.command.is_empty()) {
            (Some(pid), _) => pid,
            (None, true) => shell_of(Path::new("/"), std::os::unix::process::parent_id()),
            (None, false) => std::process::id(),
        };
        let holders = Holders::of_this_user(Path::new("/"), &scene.node_name())?;
        let nobody_looked = candidates(&scene, &allotted, &Err(String::new()));
        if let Some(refusal) =
            choose(&nobody_looked, &wishes, &|_| false).err().filter(|refusal| refusal.for_good)
        {
            eprintln!("gpu-align: {}", refusal.why);
            return Ok(ExitCode::from(1));
        }
        let deadline = Instant::now() + self.wait.map_or(Duration::ZERO, |span| span.0);
        loop {
            // Many may wait: one of them at a time looks, and only if there is a card to have.
            let last = Instant::now() >= deadline;
            let turn = if last { None } else { self.turn(&holders, &scene, &allotted)? };
            if turn.is_none() && !last {
                thread::sleep(PAUSE);
                continue;
            }
            let usage = ask::usage(&scene.env.0);
            let candidates = candidates(&scene, &allotted, &usage);
            let picked = holders.take(holder, |held| {
                choose(&candidates, &wishes, held)
                    .map(|places| places.iter().map(|&p| candidates[p].clone()).collect::<Vec<_>>())
            })?;
            match picked {
                Ok(picked) => return self.use_them(&scene, &picked, usage.err()),
                Err(refusal) if last || refusal.for_good => {
                    eprintln!("gpu-align: {}", refusal.why);
                    let blind =
                        usage.is_err() && (self.min_free.is_some() || self.max_util.is_some());
                    if let (true, Err(why)) = (blind, &usage) {
                        eprintln!("gpu-align: the cards' use could not be looked at: {why}");
                    }
                    return Ok(ExitCode::from(if blind { 2 } else { 1 }));
                }
                Err(_) => {
                    drop(turn);
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// The right to look, while enough cards are not held.
    fn turn(
        &self,
        holders: &Holders,
        scene: &Scene,
        allotted: &[Device],
    ) -> anyhow::Result<Option<File>> {
        let held = holders.held();
        let uuids = allotted.iter().filter_map(|device| scene.uuid(*device));
        let free = uuids.filter(|uuid| !held.iter().any(|held| held == uuid.as_str())).count();
        match free < self.number() {
            true => Ok(None),
            false => holders.turn(),
        }
    }

    fn use_them(
        &self,
        scene: &Scene,
        picked: &[Candidate],
        blind: Option<String>,
    ) -> anyhow::Result<ExitCode> {
        let devices: Vec<_> = picked.iter().map(|candidate| candidate.device).collect();
        let lines = export_lines(scene, &devices).map_err(anyhow::Error::msg)?;
        for candidate in picked {
            eprintln!("gpu-align: picked {}", candidate.says());
        }
        if let Some(why) = blind {
            eprintln!("gpu-align: picked without knowing the cards' use: {why}");
        }
        if self.command.is_empty() {
            crate::print(&lines);
            return Ok(ExitCode::SUCCESS);
        }
        let list: Vec<&str> = picked.iter().map(|candidate| candidate.uuid.as_str()).collect();
        let variables = [(ORDER, PCI_ORDER.to_owned()), (VISIBLE, list.join(","))];
        Ok(become_command(&self.command, &variables))
    }
}

/// Tasks of a step that each picked would race and could meet on a card.
fn refuse_in_a_step(scene: &Scene) -> anyhow::Result<()> {
    let in_step = scene.env.get("SLURM_STEP_ID").is_some();
    match scene.tasks_here() {
        Some(tasks) if in_step && tasks > 1 => bail!(
            "this is one of {tasks} tasks of a Slurm step, which would choose against each other; \
             give each its own card with srun --gpu-align=single"
        ),
        _ => Ok(()),
    }
}

fn candidates(scene: &Scene, allotted: &[Device], usage: &Result<Usage, String>) -> Vec<Candidate> {
    let usage = usage.as_ref().ok();
    let candidate = |&device: &Device| {
        let card = scene.cards().card(device);
        let uuid = scene.uuid(device)?;
        let used = usage.and_then(|usage| usage.cards.iter().find(|used| used.pci == card.pci));
        let slice = used.and_then(|used| used.slices.iter().find(|slice| slice.uuid == uuid));
        let processes = match slice {
            Some(slice) => Some(&slice.processes),
            None => used.and_then(|used| used.processes.as_ref()),
        };
        let compute = |list: &Vec<crate::inside::usage::Holder>| {
            list.iter().filter(|process| !process.graphics).count()
        };
        Some(Candidate {
            device,
            pci: card.pci,
            uuid: uuid.to_string(),
            model: card.model.clone(),
            near: scene.near.get(device.card).copied().unwrap_or(false),
            processes: processes.map(compute),
            load: used.and_then(|used| used.load),
            free: slice.map_or_else(|| used.and_then(|used| used.free), |slice| slice.free),
            prohibited: used.is_some_and(|used| used.compute_mode.as_deref() == Some("prohibited")),
            total: if device.slice.is_none() { used.and_then(|used| used.total) } else { None },
        })
    };
    allotted.iter().filter_map(candidate).collect()
}

/// Bytes, written like `20GiB`, `20G` or `500M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let unit = match text[end..].trim().to_ascii_lowercase().as_str() {
            "m" | "mb" | "mib" => 1u64 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err("write a size with its unit, like 20GiB or 500M".into()),
        };
        let number: f64 = text[..end].parse().map_err(|_| "write a size like 20GiB".to_owned())?;
        match (number * unit as f64) as u64 {
            0 => Err("write a size above 0, like 20GiB".into()),
            bytes => Ok(Size(bytes)),
        }
    }
}

/// A span of time, written like `30s`, `5m` or `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let wrong = || "write a time like 30s, 5m or 2h".to_owned();
        let (number, unit) = match text.char_indices().next_back().ok_or_else(wrong)? {
            (end, 's') => (&text[..end], 1),
            (end, 'm') => (&text[..end], 60),
            (end, 'h') => (&text[..end], 3600),
            _ => (text, 1),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        Ok(Span(Duration::from_secs(u64::from(number) * unit)))
    }
}

impl AsPicked for Vec<Candidate> {
    fn uuids(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|candidate| candidate.uuid.as_str())
    }
}

impl Candidate {
    fn says(&self) -> String {
        let use_ = [
            self.processes
                .map(|n| format!("{n} compute process{}", if n == 1 { "" } else { "es" })),
            self.load.map(|load| format!("{load} % busy")),
            self.free.map(|free| format!("{} free", size(free))),
        ];
        let use_: Vec<String> = use_.into_iter().flatten().collect();
        let use_ = if use_.is_empty() { String::new() } else { format!(" ({})", use_.join(", ")) };
        format!("card {} {} {} {}{use_}", self.device.card, self.pci, self.uuid, self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::{golden, node, scene};
    use crate::inside::usage::{CardUse, Holder};

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!("20GiB".parse(), Ok(Size(20 << 30)));
        assert_eq!("1.5g".parse(), Ok(Size(3 << 29)));
        for nonsense in ["20", "GiB", "0GiB", "1.2.3G", "-5GiB", "1e3GiB", "20 parsecs", ""] {
            assert!(nonsense.parse::<Size>().is_err(), "{nonsense}");
        }
        assert_eq!("0".parse(), Ok(Span(Duration::ZERO)));
        assert_eq!("5m".parse(), Ok(Span(Duration::from_secs(300))));
        assert_eq!("90".parse(), Ok(Span(Duration::from_secs(90))));
        assert!("m".parse::<Span>().is_err() && "".parse::<Span>().is_err());
    }

    #[test]
    fn wishes_that_mean_nothing_are_refused() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            pick: Pick,
        }
        let refused = |words: &[&str]| {
            let line = <Line as clap::Parser>::try_parse_from(["pick"].iter().chain(words));
            line.map(|line| line.pick.number).map_err(|why| why.to_string())
        };
        assert_eq!(refused(&["-n", "2", "--max-util", "100", "--wait", "0"]), Ok(2));
        assert!(refused(&["-n", "0"]).unwrap_err().contains("0 is not in 1.."));
        assert!(refused(&["--max-util", "101"]).unwrap_err().contains("101 is not in 0..=100"));
        assert!(refused(&["--min-free", "0G"]).unwrap_err().contains("write a size above 0"));
        assert!(refused(&["--model", "A("]).unwrap_err().contains("without closing ')'"));
    }

    #[test]
    fn several_tasks_are_sent_to_the_option() {
        let mut env = vec![
            ("SLURM_JOB_ID", "12"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "4"),
        ];
        let refused = refuse_in_a_step(&scene(&node("tidy4"), &[0], &env)).unwrap_err();
        assert!(refused.to_string().ends_with("srun --gpu-align=single"));
        env[3].1 = "1";
        refuse_in_a_step(&scene(&node("tidy4"), &[0], &env)).unwrap();
    }

    #[test]
    fn what_is_picked_is_said_with_its_use() {
        let scene = scene(&node("tidy8"), &[3, 4, 5], &[]);
        let card = |device: &Device| {
            let card = scene.cards().card(*device);
            let holder = |pid| Holder { pid, memory: None, graphics: false };
            CardUse {
                pci: card.pci,
                uuid: card.uuid.clone(),
                total: Some(80 << 30),
                free: Some(79 << 30),
                load: Some(7),
                compute_mode: Some(if device.card == 3 { "prohibited" } else { "default" }.into()),
                persistence: Some(true),
                mig: Some(false),
                slices: Vec::new(),
                processes: Some((0..device.card as u32 % 2).map(holder).collect()),
            }
        };
        let usage =
            Usage { driver: None, cards: scene.reach.iter().map(card).collect(), silent: vec![] };
        let blind = candidates(&scene, &scene.reach, &Err("NVML is absent".into()));
        let seen = candidates(&scene, &scene.reach, &Ok(usage));
        let wishes =
            |number| Wishes { number, min_free: None, max_load: None, model: None, near: false };
        let said = |candidates: &[Candidate], number| match choose(
            candidates,
            &wishes(number),
            &|_| false,
        ) {
            Ok(places) => {
                let devices: Vec<_> = places.iter().map(|&p| candidates[p].device).collect();
                let said = places.iter().map(|&p| format!("picked {}\n", candidates[p].says()));
                said.collect::<String>() + &export_lines(&scene, &devices).unwrap()
            }
            Err(refusal) => refusal.why + "\n",
        };
        golden("pick", &format!("{}{}{}", said(&seen, 2), said(&seen, 3), said(&blind, 1)));
    }
}
