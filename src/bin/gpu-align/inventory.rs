//! `gpu-align inventory`: every card and slice of this node, by all its names.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use gpu_align::node::stock::{FaultKind, Stock, StockCard, StockSlice};

use crate::ask;
use crate::inside::screen::{Screen, count, number, size, word};

const EXAMPLES: &str = "\
Exit status:
  0  NVML spoke of every card and the driver agrees
  1  the cards are listed, but NVML is silent, a card is lost or a difference is said
  2  there is no driver to ask

Examples:
  gpu-align inventory
  gpu-align inventory --json | jq -r '.cards[] | [.rank, .minor, .pci, .uuid] | @tsv'
  gpu-align inventory --json | jq '.cards[].slices[].uuid'

JSON: an object with schema (1), version, boot_id, driver, cuda, nvml (null, or why
NVML is silent), differences, gone and cards, a list in PCI order. A card has rank
(nvidia-smi's index on the host), minor, uuid, pci, model, numa, cpus, memory (bytes),
persistence, compute_mode, mig, slices and fault; a slice has uuid, gi, ci, profile,
cap_minors, memory and placement. What is not known is null. gone is empty here; in
the record that `gpu-align prolog` keeps it lists the cards that were there earlier
in this boot.";

/// List every card and MIG slice of this node by all its names
///
/// Asks the driver (/proc/driver/nvidia) and NVML, and says where the two differ.
/// A card that NVML cannot speak of is listed with the reason, and so are all of them
/// where NVML hangs or crashes.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Inventory {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
    /// How long NVML may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

impl Inventory {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        let stock = ask::stock(Path::new("/"), deadline)?;
        let text = match self.json {
            true => json(&stock)?,
            false => table(&stock, Screen::stdout()),
        };
        // A reader that has seen enough closes the pipe: no reason to complain.
        let _ = io::stdout().write_all(text.as_bytes());
        Ok(ExitCode::from(u8::from(!stock.is_sound())))
    }
}

pub fn json(stock: &Stock) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(stock).context("the stock cannot be put in JSON")?;
    Ok(text + "\n")
}

const INDENT: usize = 11;

fn table(stock: &Stock, screen: Screen) -> String {
    let heads = [number("card"), number("minor"), word("bus"), word("uuid"), word("model")];
    let row = |card: &StockCard| {
        let uuid =
            card.uuid.as_ref().map_or("not known before its first use", |uuid| uuid.as_str());
        vec![
            card.rank.to_string(),
            card.minor.to_string(),
            card.pci.to_string(),
            uuid.to_owned(),
            card.model.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = stock.cards.iter().map(row).collect();
    let mut out = screen.sentence("", 0, &headline(stock));
    if !rows.is_empty() {
        out += &screen.table_with(&heads, &rows, |place| below(&stock.cards[place], screen));
    }
    for note in notes(stock) {
        out += &screen.sentence("", 0, &note);
    }
    out
}

/// Faults and differences, a sentence each. In a job's cgroup most cards may
/// be closed, which is one sentence for all of them.
fn notes(stock: &Stock) -> Vec<String> {
    let closed = |card: &&StockCard| {
        card.fault.as_ref().is_some_and(|fault| fault.kind == FaultKind::NoPermission)
    };
    let (closed, rest): (Vec<_>, Vec<_>) = stock.cards.iter().partition(closed);
    let of_cards = match closed[..] {
        [] | [_] => closed.iter().filter_map(|card| card.fault.as_ref()).collect(),
        _ => Vec::new(),
    };
    let rest = rest.iter().filter_map(|card| card.fault.as_ref());
    let faults = stock.nvml.iter().chain(of_cards).chain(rest).map(|fault| &fault.why);
    let mut notes: Vec<String> = faults.chain(&stock.differences).cloned().collect();
    if closed.len() > 1 {
        let files: Vec<String> =
            closed.iter().map(|card| format!("/dev/nvidia{}", card.minor)).collect();
        notes.insert(
            0,
            format!(
                "this process may not open {}; that is right inside a job that does not hold them",
                files.join(", ")
            ),
        );
    }
    notes
}

fn headline(stock: &Stock) -> String {
    let cuda = stock.cuda.as_ref().map_or(String::new(), |cuda| format!(", CUDA {cuda}"));
    format!("{}, driver {}{cuda}", count(stock.cards.len(), "card"), stock.driver)
}

/// What does not stand in a card's row.
fn below(card: &StockCard, screen: Screen) -> String {
    let on = |flag: bool| if flag { "on" } else { "off" };
    let facts = [
        card.memory.map(size),
        card.numa.map(|numa| format!("NUMA node {numa}")),
        card.cpus.as_ref().map(|cpus| format!("CPUs {cpus}")),
        card.persistence.map(|flag| format!("persistence {}", on(flag))),
        card.compute_mode.as_ref().map(|mode| format!("compute mode {mode}")),
        card.mig.map(|flag| format!("MIG {}", on(flag))),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    let mut out = screen.facts(INDENT, &facts, ", ");
    for slice in &card.slices {
        out += &screen.facts(INDENT, &of_slice(slice), "  ");
    }
    out
}

fn of_slice(StockSlice { slice, placement, .. }: &StockSlice) -> Vec<String> {
    let [gi_cap, ci_cap] = slice.cap_minors;
    let facts = [
        Some(format!("slice {}/{}  {}", slice.gi, slice.ci, slice.uuid)),
        Some(slice.profile.clone()),
        Some(format!("caps {gi_cap} {ci_cap}")),
        placement.map(|[start, size]| format!("at {start}+{size}")),
    ];
    facts.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::golden;
    use gpu_align::node::stock::Fault;

    fn stock() -> Stock {
        let card = |rank: usize, fault: Option<FaultKind>| {
            let fault =
                fault.map(|kind| Fault { kind, why: format!("card {rank} is amiss; look") });
            let text = serde_json::json!({
                "rank": rank, "minor": 7 - rank, "pci": format!("0000:{:02x}:00.0", rank * 32 + 1),
                "uuid": format!("GPU-00000000-0008-4000-8000-00000000000{rank}"),
                "model": "NVIDIA A100-SXM4-80GB", "numa": rank / 2, "cpus": "0-3",
                "memory": if fault.is_some() { None } else { Some(80u64 << 30) },
                "persistence": true, "compute_mode": "default", "mig": rank == 0,
                "slices": [], "fault": fault,
            });
            serde_json::from_value::<StockCard>(text).unwrap()
        };
        let closed = Some(FaultKind::NoPermission);
        let mut cards = vec![card(0, None), card(1, closed), card(2, closed)];
        cards.push(card(3, Some(FaultKind::Lost)));
        let slice = serde_json::json!({
            "uuid": "MIG-00000000-00a0-5000-8000-000000000000", "gi": 7, "ci": 0,
            "profile": "1g.10gb", "cap_minors": [66, 67], "memory": 10u64 << 30,
            "placement": [0, 1],
        });
        cards[0].slices = vec![serde_json::from_value(slice).unwrap()];
        let rest = serde_json::json!({
            "schema": 1, "version": "0.1.0", "boot_id": "", "driver": "580.159.04",
            "cuda": "12.9", "nvml": null, "cards": cards, "differences": ["two stories; look"],
        });
        serde_json::from_value(rest).unwrap()
    }

    #[test]
    fn the_table_fits_the_screen() {
        for width in [100, 80, 60] {
            let text = table(&stock(), Screen { width, colours: false });
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            golden(&format!("inventory-{width}"), &text);
        }
    }

    #[test]
    fn cards_that_may_not_be_opened_are_one_sentence() {
        let notes = notes(&stock());
        assert_eq!(
            notes,
            [
                "this process may not open /dev/nvidia6, /dev/nvidia5; that is right inside a job \
                 that does not hold them",
                "card 3 is amiss; look",
                "two stories; look"
            ]
        );
    }
}
