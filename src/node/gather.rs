//! What the plugin knows of the node before a step starts: the driver's list,
//! and where that is not enough (a card never used, a card cut into slices) the
//! record, and failing that the helper, once, with a deadline.
//!
//! Invariant: what is still unknown afterwards stays unknown, with the reason;
//! a card that is cut is never taken for a whole one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::device::{Card, Inventory};
use crate::node::record::{self, Now};
use crate::node::{capabilities, child, driver};

/// Where the plugin looks besides the driver; from plugstack.conf only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    pub record: PathBuf,
    pub helper: PathBuf,
    /// How long the helper may take.
    pub timeout: Duration,
}

/// The node, as far as it is known.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// Or why nothing can be decided on this node, as a sentence.
    pub inventory: Result<Inventory, String>,
    /// Why some cards have no UUID, as a sentence.
    pub gap: Option<String>,
}

/// Reads the node. `root` is `/` but for tests; `ask` says whether the step is
/// worth starting the helper for.
pub fn gather(root: &Path, sources: &Sources, ask: bool) -> Gathered {
    let known = match driver::read(root) {
        Ok(known) => known,
        Err(why) => return Gathered { inventory: Err(why.to_string()), gap: None },
    };
    let cut: Vec<bool> =
        known.cards().iter().map(|card| capabilities::is_cut(root, card.minor)).collect();
    if !cut.contains(&true) && known.cards().iter().all(|card| card.uuid.is_some()) {
        return Gathered { inventory: Ok(known), gap: None };
    }
    match complete(root, sources, ask, &known) {
        Ok(cards) => {
            let unnamed = cards.iter().find(|card| card.uuid.is_none()).map(|card| card.pci);
            let gap = unnamed.map(|pci| {
                format!(
                    "neither the driver nor NVML names card {pci}; ask the admin whether it is lost"
                )
            });
            Gathered { inventory: Ok(Inventory::new(cards)), gap }
        }
        Err(why) if cut.contains(&true) => Gathered { inventory: Err(why), gap: None },
        Err(why) => Gathered { inventory: Ok(known), gap: Some(why) },
    }
}

fn complete(
    root: &Path,
    sources: &Sources,
    ask: bool,
    known: &Inventory,
) -> Result<Vec<Card>, String> {
    let now = Now::read(root, known).map_err(|why| why.to_string())?;
    let disbelief = match record::read(&sources.record, &now) {
        Ok(said) => return Ok(joined(said, known)),
        Err(why) => why,
    };
    let answer = match ask {
        true => ask_helper(sources, &now),
        false => Err("gpu-align inventory was not asked".to_owned()),
    };
    answer.map(|said| joined(said, known)).map_err(|silence| {
        format!(
            "the driver does not name every card; {} is not believed ({disbelief}) and {silence}; \
             let the Prolog run 'gpu-align prolog'",
            sources.record.display()
        )
    })
}

fn ask_helper(sources: &Sources, now: &Now) -> Result<Vec<Card>, String> {
    let arguments = ["inventory", "--json"];
    let output = child::run(&sources.helper, &arguments, sources.timeout, record::MAX_BYTES)
        .map_err(|why| why.to_string())?;
    #[derive(serde::Deserialize)]
    struct Nvml {
        nvml: Option<Fault>,
    }
    #[derive(serde::Deserialize)]
    struct Fault {
        why: String,
    }
    let silent = serde_json::from_slice::<Nvml>(&output.stdout).ok().and_then(|said| said.nvml);
    if let Some(fault) = silent {
        return Err(fault.why.chars().filter(|c| !c.is_control()).take(200).collect());
    }
    record::believe(&output.stdout, now)
        .map_err(|why| format!("{}'s answer is not either ({why})", sources.helper.display()))
}

/// The driver's cards, with the names and slices that only NVML knows.
fn joined(said: Vec<Card>, known: &Inventory) -> Vec<Card> {
    let mut cards = known.cards().to_vec();
    for card in &mut cards {
        // Believed: both have the same cards.
        let Some(said) = said.iter().find(|said| said.pci == card.pci) else { continue };
        card.slices.clone_from(&said.slices);
        if card.uuid.is_none() {
            card.uuid.clone_from(&said.uuid);
        }
    }
    cards
}

#[cfg(test)]
mod tests;
