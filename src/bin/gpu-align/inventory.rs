//! `gpu-align inventory`: every card and slice of this node, by all its names.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use gpu_align::node::stock::{Stock, StockCard, StockSlice};

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
/// A card that NVML cannot speak of is listed with the reason.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Inventory {
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

impl Inventory {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let stock = Stock::take(Path::new("/"))?;
        let text = match self.json {
            true => json(&stock)?,
            false => table(&stock),
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

const WIDTH: usize = 100;
const INDENT: usize = 11;

fn table(stock: &Stock) -> String {
    let mut lines = vec![headline(stock)];
    if !stock.cards.is_empty() {
        lines.push(format!(
            "{:>4} {:>5} {:<12}  {:<40}  {}",
            "card", "minor", "bus", "uuid", "model"
        ));
    }
    for card in &stock.cards {
        card_lines(card, &mut lines);
    }
    let faults = stock.nvml.iter().chain(stock.cards.iter().filter_map(|c| c.fault.as_ref()));
    let notes = faults.map(|fault| &fault.why).chain(&stock.differences);
    for note in notes {
        wrap(note.split(' '), " ", 0, &mut lines);
    }
    lines.join("\n") + "\n"
}

fn headline(stock: &Stock) -> String {
    let cards = match stock.cards.len() {
        1 => "1 card".to_owned(),
        n => format!("{n} cards"),
    };
    let cuda = stock.cuda.as_ref().map_or(String::new(), |cuda| format!(", CUDA {cuda}"));
    format!("{cards}, driver {}{cuda}", stock.driver)
}

fn card_lines(card: &StockCard, lines: &mut Vec<String>) {
    let uuid = card.uuid.as_ref().map_or("not known before its first use", |uuid| uuid.as_str());
    let pci = card.pci.to_string();
    lines.push(format!("{:>4} {:>5} {pci:<12}  {uuid:<40}  {}", card.rank, card.minor, card.model));
    let on = |flag: bool| if flag { "on" } else { "off" };
    let facts = [
        card.memory.map(size),
        card.numa.map(|numa| format!("NUMA node {numa}")),
        card.cpus.as_ref().map(|cpus| format!("CPUs {cpus}")),
        card.persistence.map(|flag| format!("persistence {}", on(flag))),
        card.compute_mode.as_ref().map(|mode| format!("compute mode {mode}")),
        card.mig.map(|flag| format!("MIG {}", on(flag))),
    ];
    wrap(facts.iter().flatten().map(String::as_str), ", ", INDENT, lines);
    for slice in &card.slices {
        slice_lines(slice, lines);
    }
}

fn slice_lines(StockSlice { slice, placement, .. }: &StockSlice, lines: &mut Vec<String>) {
    let [gi_cap, ci_cap] = slice.cap_minors;
    let facts = [
        Some(format!("slice {}/{}  {}", slice.gi, slice.ci, slice.uuid)),
        Some(slice.profile.clone()),
        Some(format!("caps {gi_cap} {ci_cap}")),
        placement.map(|[start, size]| format!("at {start}+{size}")),
    ];
    wrap(facts.iter().flatten().map(String::as_str), "  ", INDENT, lines);
}

fn size(bytes: u64) -> String {
    match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Joins parts to lines of at most [`WIDTH`] columns, where the parts allow it.
fn wrap<'a>(
    parts: impl Iterator<Item = &'a str>,
    separator: &str,
    indent: usize,
    lines: &mut Vec<String>,
) {
    let mut line = String::new();
    for part in parts {
        if !line.is_empty() && line.len() + separator.len() + part.len() > WIDTH {
            lines.push(std::mem::take(&mut line));
        }
        match line.is_empty() {
            true => line = " ".repeat(indent),
            false => line += separator,
        }
        line += part;
    }
    if !line.is_empty() {
        lines.push(line);
    }
}
